"""The evaluation as a command: figures, picture, resuming, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer import Typer
from typer.testing import CliRunner, Result

from arr_coc.qwen.loading import load_qwen
from evaluation import run
from evaluation.errors import ResultsError, SuiteError
from evaluation.journal import model_hash
from evaluation.output import _styles, check_plotting, plot
from evaluation.report import cells
from evaluation.run import Outputs, evaluate
from evaluation.runner import ModelUnderTest, Suite, plan
from evaluation.strategies.base import Ask, Reply, Strategy, Stream, stream_strategy
from evaluation.strategies.catalogue import STRATEGIES
from evaluation.suites import named_suite
from tests.support.evaluation import picture, question, row, suite
from tests.support.models import tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def asking(folder: Path) -> ModelUnderTest:
    return ModelUnderTest(load_qwen(folder), model_hash(folder), max_tokens=4)


def command(*arguments: str) -> Result:
    app = Typer()
    app.command()(run.main)
    return CliRunner().invoke(app, arguments)


def counting(monkeypatch: pytest.MonkeyPatch, name: str, stop_after: int | None = None) -> list[Ask]:
    """The asks that a strategy gets from here on; it is interrupted after so many."""
    real, asks = STRATEGIES[name], []

    def answer(qwen: Any, ask: Ask) -> Reply:
        asks.append(ask)
        if stop_after is not None and len(asks) > stop_after:
            raise KeyboardInterrupt
        return real.answer(qwen, ask)

    monkeypatch.setitem(STRATEGIES, name, replace(real, answer=answer))
    return asks


def test_figures_answers_and_picture_are_written(asking: ModelUnderTest, tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "out.json", tmp_path / "out.png", fresh=False)
    ways = plan("arr-coc,full,random", "50%,20%", None, 2)
    figures = evaluate(asking, [suite(3), suite(2, "clips", frames=2)], ways, outputs)
    assert json.loads(outputs.figures.read_text()) == figures
    assert [(cell["suite"], cell["strategy"], cell["budget"], cell["count"]) for cell in figures["cells"]] == [
        (name, strategy, budget, count)
        for name, count in (("small", 3), ("clips", 2))
        for strategy, budget in (
            *(("arr-coc", "50%"), ("arr-coc", "20%"), ("full", "100%")),
            *(("random", "50%"), ("random", "20%")),
        )
    ]
    assert all(cell["peak_mb"] > 0 and cell["ttft_ms"] > 0 for cell in figures["cells"])
    assert figures["model"]["hash"] == asking.model_hash
    assert {comparison["against"] for comparison in figures["at_equal_tokens"]} == {"full (full)", "random (sparse)"}
    assert {comparison["against"] for comparison in figures["at_equal_flops"]} == {"random (sparse)"}
    assert len(outputs.answers.read_text().splitlines()) == 5 * (2 + 1 + 4)
    with Image.open(tmp_path / "out.png") as image:
        assert image.size[0] > 800


def test_a_run_that_was_killed_continues_from_its_last_answer(
    asking: ModelUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = Outputs(tmp_path / "out.json", None, fresh=False)
    with monkeypatch.context() as patched:
        counting(patched, "grid", stop_after=3)  # one of them to warm up
        with pytest.raises(KeyboardInterrupt):
            evaluate(asking, [suite(4)], plan("grid", "50%", None, 1), outputs)
    assert len(outputs.answers.read_text().splitlines()) == 2
    assert not outputs.figures.exists()
    with monkeypatch.context() as patched:
        asks = counting(patched, "grid")
        resumed = evaluate(asking, [suite(4)], plan("grid", "50%", None, 1), outputs)
        assert len(asks) == 1 + 2
        evaluate(asking, [suite(4)], plan("grid", "50%", None, 1), outputs)
        assert len(asks) == 3
        evaluate(asking, [suite(4)], plan("grid", "50%", None, 1), replace(outputs, fresh=True))
        assert len(asks) == 3 + 1 + 4
    full_run = evaluate(asking, [suite(4)], plan("grid", "50%", None, 1), Outputs(tmp_path / "b.json", None, False))
    steady = ("accuracy", "low", "high", "count", "tokens", "flops")
    assert [resumed["cells"][0][part] for part in steady] == [full_run["cells"][0][part] for part in steady]


@pytest.mark.parametrize("changed", [{"model_hash": "another"}, {"max_tokens": 5}])
def test_answers_of_another_model_or_option_are_not_taken(
    asking: ModelUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    outputs = Outputs(tmp_path / "out.json", None, fresh=False)
    asks = counting(monkeypatch, "grid")
    evaluate(asking, [suite(2)], plan("grid", "50%", None, 1), outputs)
    evaluate(replace(asking, **changed), [suite(2)], plan("grid", "50%", None, 1), outputs)
    assert len(asks) == 2 * 3
    evaluate(asking, [replace(suite(2), hash="changed")], plan("grid", "50%", None, 1), outputs)
    assert len(asks) == 3 * 3


def test_the_effect_of_feedback_is_reported(folder: Path, tmp_path: Path) -> None:
    Image.fromarray(picture()).save(tmp_path / "own.png")
    (tmp_path / "mine.jsonl").write_text(json.dumps({"image": "own.png", "question": "What?", "answers": ["x"]}))
    options = ("--model", str(folder), "--out", str(tmp_path / "out.json"), "--max-tokens", "3", "--budget", "20%")
    result = command(
        *("--questions", str(tmp_path / "mine.jsonl"), "--strategy", "arr-coc-again,arr-coc-feedback"),
        *("--encode", "sparse,incremental", *options),
    )
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["model"]["hash"] == model_hash(folder)
    reported = [(effect["part"], effect["strategy"], effect["encode"]) for effect in figures["effects"]]
    assert reported == [
        ("feedback", "arr-coc-feedback", "sparse"),
        ("feedback", "arr-coc-feedback", "incremental"),
        ("incremental", "arr-coc-again", "incremental"),
        ("incremental", "arr-coc-feedback", "incremental"),
    ]
    assert [line.split()[0] for line in result.stdout.splitlines()[-4:]] == [part for part, _, _ in reported]


def test_the_allocators_weights_can_be_left_out(tmp_path: Path) -> None:
    Image.fromarray(picture()).save(tmp_path / "own.png")
    (tmp_path / "mine.jsonl").write_text(json.dumps({"image": "own.png", "question": "What?", "answers": ["x"]}))
    options = ("--questions", str(tmp_path / "mine.jsonl"), "--out", str(tmp_path / "out.json"), "--max-tokens", "2")
    for untrained in ([], ["--untrained"]):
        result = command(*options, "--strategy", "arr-coc", "--budget", "20%", *untrained)
        assert result.exit_code == 0, result.output
        model = json.loads((tmp_path / "out.json").read_text())["model"]
        assert model["allocator"] == ("untrained" if untrained else "trained")
        assert model["hash"].endswith(" untrained") == bool(untrained)
    refused = command(*options, "--strategy", "arr-coc", "--untrained", "--allocator", "mine")
    assert (refused.exit_code, "give one of them" in refused.stderr) == (2, True)
    assert len((tmp_path / "out.answers.jsonl").read_text().splitlines()) == 2, "the one is not taken for the other"


def test_a_users_questions_are_asked(folder: Path, tmp_path: Path) -> None:
    Image.fromarray(picture()).save(tmp_path / "own.png")
    lines = [{"image": "own.png", "question": f"What is {n}?", "answers": ["x"] * 10} for n in range(3)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, lines)))
    out = tmp_path / "out.json"
    result = command(
        *("--questions", str(tmp_path / "mine.jsonl"), "--strategy", "arr-coc,divprune", "--budget", "10"),
        *("--model", str(folder), "--out", str(out), "--count", "2", "--max-tokens", "3"),
    )
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())
    assert [(cell["suite"], cell["strategy"], cell["count"]) for cell in figures["cells"]] == [
        ("mine", "arr-coc", 2),
        ("mine", "divprune", 2),
    ]
    assert "mine" in result.stdout
    assert "other answers" not in result.stdout
    assert f"wrote {out}" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "stil"], "unknown suite 'stil'; there are still, video, text, camouflage, void, pan, stream"),
        (["--suite", "still", "--strategy", "best"], "unknown strategy 'best'; there are arr-coc"),
        (["--suite", "still", "--budget", "much"], "a budget is a share of the tokens such as 27%"),
        (["--suite", "still", "--encode", "none"], "unknown encoding 'none'"),
        (["--suite", "still", "--model", "./none"], "there is no folder ./none"),
        (["--questions", "none.jsonl"], "cannot read none.jsonl"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_run(
    arguments: Sequence[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = command(*arguments)
    assert result.exit_code == run.BAD_INPUT
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "message"),
    [("mine.json", "no evaluation wrote it; choose another --out"), ("q.json", "holds the questions")],
)
def test_a_file_of_the_users_is_not_overwritten(
    out: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(picture()).save("own.png")
    Path("q.answers.jsonl").write_text(json.dumps({"image": "own.png", "question": "What?", "answers": ["x"]}))
    Path("mine.json").write_text('["mine"]')
    result = command("--questions", "q.answers.jsonl", "--out", out)
    assert result.exit_code == run.BAD_INPUT
    assert message in result.stderr
    assert Path("mine.json").read_text() == '["mine"]'


def test_every_frozen_suite_gives_questions_with_numbers_for_names() -> None:
    suite = named_suite("still", 2)
    questions = list(suite.questions())
    assert [question.id for question in questions] == ["0", "1"]
    assert all(question.frames and question.answers for question in questions)
    with pytest.raises(SuiteError, match="unknown suite 'nothing'"):
        named_suite("nothing")


def test_a_pan_s_questions_know_the_frames_before_them() -> None:
    first, second, third = named_suite("pan", 3).questions()
    assert first.before == ()
    assert [len(question.before) for question in (second, third)] == [1, 2]
    assert third.before[1] is second.frames[0]
    assert third.before_s == (*first.times_s, *second.times_s)
    assert all(question.before == () for question in named_suite("still", 3).questions())


def remembering_grid(asks: list[str], stop_after: int = 10**6) -> Strategy:
    """A strategy that answers with `grid` and reports the tokens of earlier answers as kept; `asks` lists what streams
    were asked."""

    def begin(qwen: Any) -> Stream:
        total = [0]

        def answer(ask: Ask) -> Reply:
            if len(asks) == stop_after:
                raise KeyboardInterrupt
            asks.append(f"{ask.times_s[0]:g} s, {total[0]} kept")
            reply = STRATEGIES["grid"].answer(qwen, ask)
            total[0] += reply.tokens
            return replace(reply, tokens=total[0], cached_tokens=total[0] - reply.tokens)

        return answer

    return stream_strategy("kept-grid", begin)


def streams() -> Suite:
    """Two clips of two answers, and a question about no clip."""
    groups = [("p", 0), ("p", 1), ("q", 2), ("q", 3), ("", 4)]
    return Suite("streams", "hash", lambda: (question(n, group=group, stale=("old",)) for group, n in groups))


@pytest.mark.parametrize("stop_after", [10**6, 3, 4])
def test_a_strategy_keeps_its_state_through_the_answers_of_a_clip_and_a_killed_run(
    asking: ModelUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    outputs, asks, later_asks = Outputs(tmp_path / "out.json", None, fresh=False), list[str](), list[str]()
    monkeypatch.setitem(STRATEGIES, "kept-grid", remembering_grid(asks, stop_after))
    if stop_after < 6:
        with pytest.raises(KeyboardInterrupt):
            evaluate(asking, [streams()], plan("kept-grid", "50%", None, 1), outputs)
        monkeypatch.setitem(STRATEGIES, "kept-grid", remembering_grid(later_asks))
    (cell,) = evaluate(asking, [streams()], plan("kept-grid", "50%", None, 1), outputs)["cells"]
    rows = [json.loads(line) for line in outputs.answers.read_text().splitlines()]
    assert [row["kept"] for row in rows] == [0, 18, 0, 18, 0]
    assert [row["tokens"] for row in rows] == [18, 36, 18, 36, 18]
    assert (cell["appended"], cell["tokens"], cell["stale"]) == (18, 126 / 5, 0)
    assert cell["prefilled"] == pytest.approx(sum(row["prefilled"] for row in rows) / 5)
    first, second = "0 s, 0 kept", "0 s, 18 kept"
    if stop_after == 3:  # one of them to warm up
        assert (asks, later_asks) == ([first, first, second], [first, first, second, first])
    elif stop_after == 4:
        assert later_asks == [first, first, second, first], "the clip's first answer is made once more for the second"
    else:
        assert asks == [first, first, second, first, second, first]


def test_figures_that_cannot_be_written_are_reported(asking: ModelUnderTest, tmp_path: Path) -> None:
    (tmp_path / "out.json").mkdir()
    with pytest.raises(ResultsError, match="choose another --out"):
        evaluate(asking, [suite(1)], plan("grid", "50%", None, 1), Outputs(tmp_path / "out.json", None, False))
    with pytest.raises(ResultsError, match="choose another --png"):
        plot(cells([row()]), "title", tmp_path / "none" / "out.png")


@pytest.mark.parametrize("count", [3, 10, 14, 20, 33])
def test_every_curve_of_a_picture_has_its_own_colour(count: int) -> None:
    styles = _styles([(f"strategy {number}", "sparse") for number in range(count)])
    assert len({tuple(style["color"]) for style in styles.values()}) == count


def test_a_picture_needs_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ResultsError, match="pip install matplotlib"):
        check_plotting()
