"""Public benchmarks as a command, with the bundled model: figures, every strategy's frames, and resuming."""

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
from arr_coc.qwen.qwenvl import QwenVL
from evaluation import run
from evaluation.public import items
from evaluation.public.registry import BENCHMARKS
from evaluation.strategies.base import Ask, Reply, Strategy, Stream, stream_strategy
from evaluation.strategies.catalogue import STRATEGIES
from evaluation.suites import named_suite
from tests.support.benchmarks import FOLDERS, votes, write_json


@pytest.fixture(autouse=True)
def _one_model(monkeypatch: pytest.MonkeyPatch, bundled: QwenVL) -> None:
    monkeypatch.setattr(run, "load_qwen", lambda *_, **__: bundled)


@pytest.fixture(scope="module")
def bundled() -> QwenVL:
    return load_qwen(None)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in FOLDERS.items()}


def command(name: str, folder: Path, out: Path, *arguments: str) -> Result:
    app = Typer()
    app.command()(run.main)
    return CliRunner().invoke(
        app, ["--benchmark", name, "--data", str(folder), "--out", str(out), "--budget", "27%", *arguments]
    )


def figures(result: Result, out: Path) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    figures_json: dict[str, Any] = json.loads(out.read_text())
    return figures_json


def strategies(name: str) -> str:
    return "arr-coc,memory,full" if BENCHMARKS[name].shows == "streams" else "arr-coc,full"


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_the_bundled_model_answers_every_benchmark(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    out = tmp_path / "out.json"
    frame_options = () if BENCHMARKS[name].shows == "pictures" else ("--frames", "3")
    result = command(
        name, folders[name], out, "--strategy", strategies(name), *frame_options, "--max-tokens", "4", "--limit", "2"
    )
    content = figures(result, out)
    benchmark, split = BENCHMARKS[name], BENCHMARKS[name].splits[0]
    report = content["benchmark"]
    assert (report["name"], report["split"], report["metric"]) == (name, split, benchmark.metric)
    assert report["questions"] >= 2
    assert len(report["cells"]) == len(content["cells"]) == len(strategies(name).split(","))
    for cell, report_cell in zip(content["cells"], report["cells"], strict=True):
        assert {part: report_cell[part] for part in ("suite", "strategy", "budget", "encode")}.items() <= cell.items()
        assert cell["count"] == 2
        assert 0 <= report_cell["figure"] <= 1
    assert result.stdout.splitlines()[-1 - len(report["cells"])] == f"{name} {split}: {benchmark.metric}"


@pytest.mark.parametrize("split", BENCHMARKS["streamingbench"].splits[1:])
def test_other_splits_of_a_stream(folders: dict[str, Path], tmp_path: Path, split: str) -> None:
    out = tmp_path / "out.json"
    options = ("--split", split, "--strategy", "arr-coc,memory", "--frames", "2", "--max-tokens", "4")
    content = figures(command("streamingbench", folders["streamingbench"], out, *options), out)
    assert set(content["suites"]) == {f"streamingbench-{split}"}
    assert content["benchmark"]["metric"] == BENCHMARKS["streamingbench"].of_split(split)[1]


def test_boxes_are_scored_by_the_tiles_shown(folders: dict[str, Path], tmp_path: Path) -> None:
    """All 12 tiles are shown: of the dogs 5 are asked about (4 of the first, 1 of the second), of the person all."""
    out = tmp_path / "out.json"
    content = figures(command("coco", folders["coco"], out, "--strategy", "full"), out)
    (cell,), (report_cell,) = content["cells"], content["benchmark"]["cells"]
    assert report_cell["groups"]["category"] == {"dog": pytest.approx(5 / 12), "person": 1.0}
    assert report_cell["figure"] == cell["accuracy"] == cell["iou"] == pytest.approx((5 / 12 + 1) / 2)
    assert cell["covered"] == 1.0


def test_right_answers_about_drawn_scenes_count(tmp_path: Path) -> None:
    """Questions of the suite `still` as VQAv2 would publish them: what the suite counts right, the benchmark does."""
    questions, annotations = [], []
    for number, pending in enumerate(named_suite("still", 12).questions(), 1):
        question = pending.load()
        if question.facts:
            continue
        questions.append({"image_id": number, "question": question.text, "question_id": number})
        annotations.append(
            {
                **{"image_id": number, "question_id": number, "answers": votes(*[question.answers[0]] * 10)},
                "multiple_choice_answer": question.answers[0],
                **{"answer_type": "other", "question_type": question.kind},
            }
        )
        path = tmp_path / "val2014" / f"COCO_val2014_{number:012d}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(question.frames[0]).save(path, format="PNG")  # so that nothing is lost
    write_json(tmp_path / "v2_OpenEnded_mscoco_val2014_questions.json", {"questions": questions})
    write_json(tmp_path / "v2_mscoco_val2014_annotations.json", {"annotations": annotations})
    out = tmp_path / "out.json"
    options = ("--bare", "--suite", "still", "--strategy", "arr-coc", "--count", "12", "--max-tokens", "16")
    content = figures(command("vqav2", tmp_path, out, *options), out)
    rows = [json.loads(line) for line in out.with_suffix(".answers.jsonl").read_text().splitlines()]
    suite_scores = {row["question"]: row["score"] for row in rows if row["suite"] == "still"}
    benchmark_scores = {row["question"]: row["score"] for row in rows if row["suite"] == "vqav2-val2014"}
    assert len(benchmark_scores) == len(questions) > 8
    assert benchmark_scores.items() <= suite_scores.items()
    assert content["benchmark"]["cells"][0]["figure"] > 0.5


def watching(monkeypatch: pytest.MonkeyPatch, asks: list[Ask], stop_after: int | None = None) -> None:
    """Replace two strategies: `grid` answers each question alone, `evs` keeps a stream; both note what they get."""
    real = STRATEGIES["grid"]

    def answer(qwen: Any, ask: Ask) -> Reply:
        asks.append(ask)
        if stop_after is not None and len(asks) > stop_after:
            raise KeyboardInterrupt
        return real.answer(qwen, ask)

    def begin(qwen: Any) -> Stream:
        return lambda ask: answer(qwen, ask)

    strategy: Strategy = stream_strategy("evs", begin)
    monkeypatch.setitem(STRATEGIES, "grid", replace(real, answer=answer))
    monkeypatch.setitem(STRATEGIES, "evs", strategy)


def times(asks: Sequence[Ask]) -> list[tuple[float, ...]]:
    return [ask.times_s for ask in asks]


def test_a_stream_is_shown_each_frame_once(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks: list[Ask] = []
    watching(monkeypatch, asks)
    options = ("--strategy", "evs", "--max-tokens", "1")
    figures(command("streamingbench", folders["streamingbench"], tmp_path / "a.json", *options), tmp_path / "a.json")
    warm_up, *streamed = times(asks)
    assert streamed == [(0.0, 1.0, 2.0, 3.0), (4.0, 5.0, 6.0, 7.0, 8.0)]
    asks.clear()
    options = ("--strategy", "grid", "--max-tokens", "1")
    figures(command("streamingbench", folders["streamingbench"], tmp_path / "b.json", *options), tmp_path / "b.json")
    assert times(asks)[1:] == [warm_up, tuple(map(float, range(9)))]
    asks.clear()
    options = ("--strategy", "evs", "--max-tokens", "1", "--frames", "3")
    figures(command("ovo-bench", folders["ovo-bench"], tmp_path / "c.json", *options), tmp_path / "c.json")
    second_video = times(asks)[3:]
    assert second_video == [(0.0, 2.0, 4.0), (5.0,), (6.0,), (6.0,), (7.0,), (8.0,)]  # at 6 s two questions


def test_a_killed_run_resumes_without_reading_what_is_answered(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks: list[Ask] = []
    out, options = tmp_path / "out.json", ("--strategy", "evs", "--max-tokens", "1", "--frames", "2")
    arguments = ("ovo-bench", folders["ovo-bench"], out, *options)
    with monkeypatch.context() as patched:
        watching(patched, asks, stop_after=5)  # one of them to warm up
        assert isinstance(command(*arguments).exception, (KeyboardInterrupt, SystemExit))
    answers = out.with_suffix(".answers.jsonl")
    assert len(answers.read_text().splitlines()) == 4
    assert not out.exists()
    file_reads = []
    real = items.frames_of
    monkeypatch.setattr(
        items, "frames_of", lambda path, *part: file_reads.append((path.name, part[-1])) or real(path, *part)
    )
    asks.clear()
    watching(monkeypatch, asks)
    content = figures(command(*arguments), out)
    assert content["cells"][0]["count"] == 8
    assert len(answers.read_text().splitlines()) == 8
    assert "a.mp4" not in {name for name, _ in file_reads}
    # a warm-up; the two questions of the stream that were answered before it broke off; the open ones
    assert times(asks) == [(6.0,), (0.0, 4.0), (5.0,), (6.0,), (6.0,), (7.0,), (8.0,)]
    file_reads.clear()
    asks.clear()
    repeat = figures(command(*arguments), out)
    assert (asks, file_reads) == ([], [])
    assert repeat["benchmark"] == content["benchmark"]
    limited = figures(command(*arguments, "--limit", "1"), out)
    assert (limited["cells"][0]["count"], asks) == (1, [])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("mmmu", (), "unknown benchmark 'mmmu'"),
        ("vqav2", ("--split", "test"), "vqav2 has no split 'test'"),
        ("vqav2", ("--context", "3"), "have no time; leave --context out"),
    ],
)
def test_a_request_that_does_not_suit_is_one_line(
    folders: dict[str, Path], tmp_path: Path, name: str, arguments: tuple[str, ...], message: str
) -> None:
    result = command(name, folders["vqav2"], tmp_path / "out.json", *arguments)
    assert result.exit_code == run.BAD_INPUT
    assert result.output.startswith("error: ")
    assert message in result.output
    assert result.output.count("\n") == 1


def test_a_missing_file_is_one_line_and_can_be_left_out(tmp_path: Path) -> None:
    folder = FOLDERS["textvqa"](tmp_path / "data")
    (folder / "train_images" / "sign1.jpg").unlink()
    out = tmp_path / "out.json"
    result = command("textvqa", folder, out, "--strategy", "grid")
    assert result.exit_code == run.BAD_INPUT
    assert result.output.startswith("error: 1 of 2 files are missing, the first is ")
    assert "unpack train_val_images.zip of textvqa.org there, or leave them out with --skip-missing" in result.output
    partial = command("textvqa", folder, out, "--strategy", "grid", "--skip-missing", "--max-tokens", "1")
    content = figures(partial, out)
    assert (content["benchmark"]["skipped"], content["cells"][0]["count"]) == (1, 1)
    assert "without 1 question whose file is missing" in partial.stdout
