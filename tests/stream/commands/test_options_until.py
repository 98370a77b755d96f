"""`--until` for a user: output, exit statuses, and mistakes that are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stream import cli
from stream.runtime.frame_stages import run_in_threads
from tests.support import answer_models
from tests.support.video import make_video

QUESTION = "is there a light?"


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A clip in which it gets light, and one in which it stays dark."""
    folder, made = tmp_path_factory.mktemp("clips"), {}
    for name, lit_from in (("light", 4), ("dark", 99)):
        frames = [np.full((96, 128, 3), 250 if index >= lit_from else 60, np.uint8) for index in range(8)]
        made[name] = str(make_video(folder / f"{name}.mp4", iter(frames), 10))
    return made


@pytest.fixture(autouse=True)
def _fake_answer_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_models, "on_packet", lambda frame_index: None)
    monkeypatch.setitem(run_in_threads.__kwdefaults__, "model_loader", "tests.support.answer_models:FakeAnswerModel")


def run(command: str, clip: str, *options: str) -> int:
    return cli.main([command, clip, "--single-process", "--until", QUESTION, *options])


@pytest.mark.parametrize("command", ["caption", "watch"])
def test_the_status_is_the_verdict(command: str, clips: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, clips["light"]) == 0
    assert capsys.readouterr().out == "0:00.4  yes (99 %): is there a light?\n"
    assert run(command, clips["dark"]) == 3
    assert capsys.readouterr().out == ""


def test_going_on_it_reads_to_the_end(clips: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert run("caption", clips["light"], "--go-on", "-o", str(path)) == 0
    written = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert (written[-1]["ended"], written[-1]["frames"], written[-1]["found"]) == ("finished", 8, True)
    assert run("caption", clips["dark"], "--go-on", "-o", str(path)) == 3


def test_with_another_question_both_are_asked(clips: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("caption", clips["light"], "-q", "what is it?", "--set", "answer.on_cut=false") == 0
    first, turn, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("0:00.0  frame 0 sum ")
    assert turn == "0:00.4  yes (99 %): is there a light?"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--until", ""], "--until: answer.until.question should be text such as"),
        (["--until", "  "], "--until: answer.until.question should be text such as"),
        (["--until", "x" * 4001], "4001 characters"),
        (["--go-on"], "--go-on needs --until"),
        (["--until", "is it?", "--set", "answer.target_ms=100"], "answer.target_ms needs answers"),
        (["--until", "is it?", "-o", "a.vtt"], "nothing would be written to 'a.vtt'"),
        (["--until", "is it?", "--set", "answer.until.sure=2"], "answer.until.sure should be less than or equal to 1"),
        (["--until", "is it?", "-o", "a.jsonl", "--resume"], "a journal has no yes/no checks"),
    ],
)
def test_what_cannot_be_watched_for_is_refused(
    options: list[str], message: str, clips: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["caption", clips["dark"], *options]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert error[0].startswith("error: ")
    assert message in error[0]


def test_a_model_that_cannot_watch_is_refused(
    clips: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        run_in_threads.__kwdefaults__, "model_loader", "tests.support.answer_models:WordlessAnswerModel"
    )
    assert run("caption", clips["dark"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "error: no single token for yes"
