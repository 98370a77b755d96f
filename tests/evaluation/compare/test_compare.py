"""The A/B comparison as a command: page, figures, resuming, what it refuses, and the page in a browser."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page
from typer.testing import CliRunner, Result

from evaluation.compare import __main__ as compare
from evaluation.compare.figures import answer_pairs, paired, side_figures
from evaluation.compare.page import page, sentences
from evaluation.compare.sides import Side
from evaluation.errors import ChoiceError
from evaluation.journal import AnswerJournal, Row
from evaluation.run import ModelOptions
from tests.support.evaluation import picture, question, row
from tests.support.models import tiny_folder
from tests.support.web import open_browser

BOX = [40, 60, 100, 120]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three pictures; of the questions about two, one has an answer and a box."""
    for index in range(3):
        Image.fromarray(picture(index)).save(tmp_path / f"{index}.png")
    lines = [
        {"image": "0.png", "question": "What is <it>?", "answers": ["noise"], "boxes": [BOX]},
        {"image": "1.png", "question": "Is it a cat?"},
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(compare.app, [*map(str, arguments), "--max-tokens", "4"])


def counting(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[str]:
    """The questions that are answered from here on; the next one is interrupted after so many."""
    real, answered = AnswerJournal.add, []

    def add(journal: AnswerJournal, answer: Row) -> None:
        if len(answered) == stop_after:
            raise KeyboardInterrupt
        answered.append(answer["id"])
        real(journal, answer)

    monkeypatch.setattr(AnswerJournal, "add", add)
    return answered


def test_page_and_figures_are_written_and_a_killed_run_goes_on(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "ab.html"
    sides = ("--a", f"model={model},budget=50%", "--b", f"model={model},strategy=full")
    with monkeypatch.context() as patched:
        counting(patched, stop_after=3)
        stopped = command(folder, *sides, "--out", out)
    assert (stopped.exit_code, "the same command goes on" in stopped.stderr) == (compare.INTERRUPTED, True)
    assert not out.exists()
    with monkeypatch.context() as patched:
        asked = counting(patched)
        result = command(folder, *sides, "--out", out)
    assert result.exit_code == 0, result.stderr
    assert asked == ["2"]
    assert result.stdout.startswith("A: 0.0 % right, ")
    figures = json.loads((folder / "ab.json").read_text())
    assert [figures[side]["count"] for side in "ab"] == [1, 1]
    assert figures["a"]["settings"]["budget"] == "50%"
    assert figures["b"]["token_share"] == 1
    assert [pair["a"]["score"] for pair in figures["answers"]] == [0, None]
    html = out.read_text()
    assert "What is &lt;it&gt;?" in html
    assert re.findall(r"https?://", html) == []
    again = command(folder, *sides, "--out", out)
    assert (again.exit_code, out.read_text()) == (0, html)


def test_one_question_about_each_picture_of_a_folder(folder: Path, model: Path) -> None:
    out = folder / "ab.html"
    result = command(
        folder, "--question", "What?", "--a", f"model={model}", "--b", f"model={model},budget=2", "--out", out
    )
    assert result.exit_code == 0, result.stderr
    assert "No right answers are known." in result.stdout
    assert [pair["id"] for pair in json.loads((folder / "ab.json").read_text())["answers"]] == [
        "0.png",
        "1.png",
        "2.png",
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("budget", "--a has KEY=VALUE"),
        ("size=3", "with strategy, budget, dtype, encode, model, allocator; got 'size=3'"),
        ("budget=3,budget=4", "--a has budget twice"),
        ("budget=all", "a budget is a share"),
        ("strategy=best", "unknown strategy 'best'"),
        ("encode=best", "unknown encoding 'best'"),
        ("dtype=int3", "dtype is one of auto, float32"),
        ("model=./none", "none"),
        ("allocator=./none", "none"),
        ("strategy=arr-coc", "A and B are the same"),
    ],
)
def test_a_side_that_cannot_be_is_one_line(folder: Path, text: str, error: str) -> None:
    result = command(folder, "--a", text, "--out", folder / "ab.html")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert error in result.stderr
    assert not (folder / "ab.answers.jsonl").exists()


def test_files_that_are_no_comparison_are_left_alone(folder: Path) -> None:
    def refused(*arguments: str | Path) -> str:
        result = command(*arguments, "--b", "budget=10%")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        return result.stderr

    (folder / "mine.html").write_text("<p>mine")
    (folder / "other.json").write_text("{}")
    assert "no comparison wrote it" in refused(folder, "--out", folder / "mine.html")
    assert (folder / "mine.html").read_text() == "<p>mine"
    assert "no evaluation wrote it" in refused(folder, "--out", folder / "other.html")
    assert "ends in .html" in refused(folder, "--out", folder / "other.json")
    (folder / "folder.html").mkdir()
    assert "cannot read" in refused(folder, "--out", folder / "folder.html")
    assert "there is no file" in refused(folder / "none", "--out", folder / "a.html")
    assert "has no words" in refused(folder, "--question", " ", "--out", folder / "a.html")
    assert "is none" in refused(folder / "0.png", "--question", "What?", "--out", folder / "a.html")


def test_sides_have_their_own_settings() -> None:
    side = Side.parse("B", " dtype = int8 , strategy=grid,allocator=none", "cpu")
    assert side.model == ModelOptions(None, "none", "cpu", "int8")
    assert (side.way.strategy.name, str(side.way.budget)) == ("grid", "27%")
    with pytest.raises(ChoiceError, match="--b has KEY=VALUE"):
        Side.parse("B", "dtype=")


def rows_of(*scores_and_texts: tuple[float, str], **changes: Any) -> list[dict[str, Any]]:
    return [
        row(id=str(number), score=score, text=text, regions=[[0, 0, 0], [1, 1, 1]], grid=[5, 7], **changes)
        for number, (score, text) in enumerate(scores_and_texts)
    ]


def figures_of(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> dict[str, Any]:
    described = {"model": {"name": "m", "dtype": "float32", "allocator": "trained"}}
    return {
        "questions": {"name": "yard"},
        "machine": {"cpu": "c", "device": "cpu"},
        "a": described | side_figures(a),
        "b": described | side_figures(b),
        **paired(a, b),
        "answers": answer_pairs(a, b),
    }


A = rows_of((1.0, "red"), (1.0, "Red."), (0.0, "blue"), (1.0, "the red"))
B = rows_of((1.0, "red"), (0.0, "green"), (1.0, "red"), (1.0, "red"), budget="10%")


def test_differences_are_paired() -> None:
    figures = figures_of(A, B)
    assert (figures["difference"]["difference"], figures["difference"]["count"]) == (0.0, 4)
    assert figures["same_answers"]["mean"] == 0.5
    assert [pair["same"] for pair in figures["answers"]] == [True, False, False, True]
    words = " ".join(sentences(figures))
    assert "which may be chance" in words
    better = figures_of(rows_of((0.0, "a"), (0.0, "b")), rows_of((1.0, "red"), (1.0, "red")))
    assert "B against A: +100.0 points of right answers (95 % interval +100.0 to +100.0)." in " ".join(
        sentences(better)
    )


def test_questions_without_an_answer_count_for_sameness_only() -> None:
    unknown = rows_of((0.0, "red"), answers=[])
    figures = figures_of(unknown, unknown)
    assert (figures["a"]["accuracy"], figures["difference"], figures["same_answers"]["mean"]) == (None, None, 1.0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def on(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """The page of the comparison, in a browser; it logs no error."""
    asked = [question(number, boxes=((tuple(map(float, BOX)),),)) for number in range(4)]
    (tmp_path / "ab.html").write_text(page(figures_of(A, B), zip(asked, A, B, strict=True)))
    problems: list[str] = []
    on = browser.new_page(viewport={"width": 400, "height": 800})
    on.on("console", lambda message: problems.append(message.text))
    on.goto((tmp_path / "ab.html").as_uri())
    yield on
    on.close()
    assert problems == []


def test_a_viewer_chooses_questions_and_layers(on: Page) -> None:
    assert on.evaluate("() => document.documentElement.scrollWidth") == 400
    for label, count in (
        ("different answers (2)", 2),
        ("A does better (1)", 1),
        ("B does better (1)", 1),
        ("all 4", 4),
    ):
        on.get_by_label(label).check()
        assert on.locator("article:visible").count() == count
    assert on.locator(".verdict.wrong").count() == 2
    assert on.locator(".box:not(.under)").count() == 8
    on.get_by_label("boxes", exact=True).uncheck()
    on.get_by_label("dim what is coarse").uncheck()
    on.get_by_label("tiles", exact=True).uncheck()
    assert [on.locator(f"{name}:visible").count() for name in (".box", ".dim", ".outline")] == [0, 0, 0]


def test_both_pictures_show_what_each_side_was_given(on: Page) -> None:
    """The first tile is bright on both sides, one in the middle is dark; the box is drawn at its place."""
    for name in ("tiles", "boxes"):
        on.get_by_label(name, exact=True).uncheck()
    for index in range(2):
        shot = np.array(_picture(on, index), float)
        tile = shot.shape[0] // 5
        assert shot[: tile - 2, : tile - 2].mean() > 2 * shot[-tile:, :tile].mean()
        coarse = shot[2 * tile + 2 : 4 * tile - 2, 2 * tile + 2 : 4 * tile - 2].mean()
        assert shot[-tile:, :tile].mean() < coarse < shot[: tile - 2, : tile - 2].mean()
    bare = np.array(_picture(on, 1), int)
    on.get_by_label("boxes", exact=True).check()
    rows, cols = np.nonzero(np.abs(np.array(_picture(on, 1), int) - bare).sum(axis=2) > 60)
    scale = bare.shape[1] / 224
    edges = [cols.min(), rows.min(), cols.max(), rows.max()]
    assert [edge / scale for edge in edges] == pytest.approx(BOX, abs=4)


def _picture(on: Page, index: int) -> Image.Image:
    return Image.open(io.BytesIO(on.locator("svg").nth(index).screenshot())).convert("RGB")
