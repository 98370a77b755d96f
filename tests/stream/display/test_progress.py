"""A person sees progress and captions, with and without a terminal."""

from __future__ import annotations

import io
import os
import sys

import pytest

from stream.display.progress import ProgressDisplay
from stream.display.text import SKIPS_SHOWN, saved_text, summary_text
from stream.errors import ReaderGone
from stream.events import AnswerDeltaEvent, Notice, Outage, Restarted, Skipped
from tests.support.events import answer, frame, summary, turned
from tests.support.runs import ScriptedRun


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_terminal_each_caption_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    display = ProgressDisplay(captions=True)
    display.attach(ScriptedRun([]), 10)
    for event in (
        frame(0, 0.0),
        AnswerDeltaEvent(answer=0, text="a"),
        answer(62.04, "a [bold]\nline " * 20),
        answer(63, " "),
    ):
        display.write(event)
    display.close()
    out, err = capsys.readouterr()
    assert out == "1:02.0  " + " ".join(["a", "[bold]", "line"] * 20) + "\n"
    assert err == ""


@pytest.mark.parametrize("captions", [True, False])
def test_a_turn_is_reported_on_stdout_or_with_captions_in_files_on_stderr(
    captions: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    display = ProgressDisplay(captions=captions)
    display.write(turned(62.04))
    if not captions:
        display.write(answer(62.5, "a caption that goes to files"))
    display.write(turned(63, "no", 0.04))
    display.close()
    lines = "1:02.0  yes (97 %): is it here?\n1:03.0  no (96 %): is it here?\n"
    assert tuple(capsys.readouterr()) == ((lines, "") if captions else ("", lines))


def test_messages_and_losses_go_to_stderr_and_do_not_flood(capsys: pytest.CaptureFixture[str]) -> None:
    display = ProgressDisplay(captions=True)
    display.write(Notice(code="loading", message="loading a model"))
    display.write(Notice(code="other", message="mind the [gap]"))
    display.write(Outage(frame_index=9, pts_s=2.0, reason="connection refused"))
    for number in range(9):
        display.write(Skipped(frame_index=number, pts_s=1.0, what=f"packet {number}", reason="broken"))
    display.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "note: mind the [gap]"
    assert lines[1] == "source lost at 0:02.0: connection refused"
    assert lines[2] == "skipped packet 0 before 0:01.0: broken"
    assert len(lines) == 2 + SKIPS_SHOWN + 1
    assert lines[-1] == "skipped more; the summary counts them"


def test_frames_are_counted_when_the_bar_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    display = ProgressDisplay(captions=True)
    updates: list[dict[str, object]] = []
    monkeypatch.setattr(display._progress, "update", lambda task, **fields: updates.append(fields))
    for index in range(5):
        display.write(frame(index, index / 30))
    assert updates == []
    display._render()
    assert updates == [{"description": "", "completed": 5, "counts": "frame 5"}]


def test_the_partial_answer_of_a_dead_process_is_removed() -> None:
    display = ProgressDisplay(captions=True)
    display.write(AnswerDeltaEvent(answer=0, text="half a sen"))
    display.write(Restarted(process="answers", cause="it hung", count=1))
    assert display._partial == ""


def test_the_summary_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressDisplay(captions=True).write(summary())
    ProgressDisplay(captions=True).write(summary(frames=0, ended="error", error="no model"))  # before its first frame
    assert capsys.readouterr().err == ("3 frames (0:01.0) · 2 answers · 1 cut · 3.1× less work · 2 frames a second\n")


def test_the_summary_names_losses_and_how_it_ended() -> None:
    text = summary_text(summary(frames=1, skipped=2, dropped={"answer.busy": 3}, ended="interrupted"), verbose=True)
    assert text == (
        "interrupted · 1 frame (0:01.0) · 2 answers · 1 cut · 64 of 240 tokens a frame, 3.1× less work"
        " · 2 skipped · 3 answers dropped · 2 frames a second · cpu texture"
    )


def test_at_a_terminal_there_is_progress_and_the_answer_as_it_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, out = Screen(), Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", out)
    display = ProgressDisplay(captions=True)
    display.attach(ScriptedRun([]), 10)
    display.write(frame(4, 0.4))
    display.write(AnswerDeltaEvent(answer=0, text="half a sen"))
    display.show_message("finishing soon")
    assert display._live is not None
    display._live.refresh()
    screen_text = screen.getvalue()
    assert all(part in screen_text for part in ("half a sen", "finishing soon", "frame 5"))
    display.write(answer(0.4, "half a sentence"))
    display._live.refresh()
    display.close()
    display.write(answer(0.5, "after the display"))
    assert "half a sentence" in screen.getvalue()
    assert "after the display" in out.getvalue()


def test_a_message_without_a_terminal_is_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    ProgressDisplay(captions=True).show_message("finishing soon")
    assert capfd.readouterr().err == "finishing soon\n"


def test_a_reader_that_is_gone_is_not_an_error_to_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", closefd=True) as closed_pipe:
        monkeypatch.setattr(sys, "stdout", closed_pipe)
        with pytest.raises(ReaderGone, match="reader of stdout is gone"):
            ProgressDisplay(captions=True).write(answer(0, "text"))
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)


@pytest.mark.parametrize(
    ("tokens", "tiles", "ratio", "text"),
    [
        (63.0, 240.0, 5.14, "63 of 240 tokens a frame, 5.1× less work"),
        (63.0, 240.0, None, "63 of 240 tokens a frame"),
        (63.0, 240.0, 1.0, "63 of 240 tokens a frame"),
        (48.0, 48.0, 1.0, "48 tokens a frame, which is all"),
        (0.0, 0.0, None, "0 tokens a frame"),
    ],
)
def test_saved_work_in_words(tokens: float, tiles: float, ratio: float | None, text: str) -> None:
    assert saved_text(summary(mean_tokens=tokens, mean_tiles=tiles, work_ratio=ratio)) == text
