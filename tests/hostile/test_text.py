"""One nasty text through every output: no byte of it that a terminal, a player or a reader of lines would obey."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pysubs2
import pytest
import webvtt

from stream import logs
from stream.cli import main
from stream.display.lines import JsonDisplay, LinesDisplay
from stream.display.progress import PlainConsole, ProgressDisplay
from stream.events import AnswerDeltaEvent, Detection, Event, Notice, Outage, QueryChanged, Restarted, Skipped, Started
from stream.extensions.live.display import LiveDisplay
from stream.extensions.record.command import json_lines, text_lines
from stream.extensions.record.replay import ReplayedAnswer
from stream.logs import print_line
from stream.media import AllocationOverlay
from stream.sinks.base import Sink
from stream.sinks.captions import CaptionSink
from stream.sinks.drawing import draw
from stream.sinks.output_file import JsonlSink
from tests.hostile.nasty import BROKEN_NAME, FORBIDDEN, NASTY, SHOWN
from tests.support.events import answer, detections, frame, look, summary, turned
from tests.support.runs import ScriptedRun
from tests.support.terminal import Pty

EVENTS: list[Event] = [
    Started(source=NASTY, model=NASTY, query=NASTY, backend="cpu"),
    Notice(code="loading", message=NASTY),
    frame(0, 0.0),
    AnswerDeltaEvent(answer=0, text=NASTY, pts_s=0.0),
    answer(0.0, NASTY),
    detections(0.5, Detection(label=NASTY, box=[1.0, 2.0, 3.0, 4.0])),
    look(0.0),
    turned(0.0),
    Notice(code="other", message=NASTY),
    Skipped(frame_index=1, pts_s=0.1, what=NASTY, reason=NASTY),
    Outage(frame_index=1, pts_s=0.1, reason=NASTY),
    Outage(frame_index=1, pts_s=0.2, reason=NASTY, lasted_s=1.0),
    Restarted(process=NASTY, cause=NASTY, count=1),
    QueryChanged(query=NASTY),
    QueryChanged(query=NASTY, error=NASTY),
    frame(1, 1.0),
    answer(2.0, "another"),
    frame(2, 3.0),
]


def write_nasty_events(sink: Sink) -> None:
    if isinstance(sink, (LinesDisplay, ProgressDisplay, LiveDisplay)):
        sink.attach(ScriptedRun([]), None)
    for event in EVENTS:
        sink.write(event)
    sink.write(summary(error=None))
    sink.close()


def check_lines(text: str) -> None:
    for line in text.split("\n"):
        assert not FORBIDDEN.search(line), ascii(line)


@pytest.mark.parametrize(
    "make", [lambda: ProgressDisplay(captions=True), lambda: LinesDisplay(None)], ids=["terminal", "lines"]
)
def test_displays_print_lines(make: Callable[[], Sink], capfd: pytest.CaptureFixture[str]) -> None:
    write_nasty_events(make())
    out, err = capfd.readouterr()
    check_lines(out)
    check_lines(err)
    assert all(part in out for part in SHOWN)
    assert "plain" in err
    assert len(out.strip().split("\n")) == 3


def test_the_log_for_machines_is_lines_of_json(capfd: pytest.CaptureFixture[str]) -> None:
    write_nasty_events(JsonDisplay(captions=True))
    out, err = capfd.readouterr()
    check_lines(out)
    check_lines(err)
    reported = [json.loads(line) for line in err.splitlines()]
    assert next(line for line in reported if line["event"] == "answer")["text"] == NASTY


@contextmanager
def standard_streams_on(pty: Pty) -> Iterator[None]:
    with (
        open(pty.program, "w", encoding="utf-8", closefd=False) as end,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr(sys, "stderr", end)
        patched.setattr(sys, "stdout", end)
        patched.setenv("TERM", "xterm-256color")
        yield


@pytest.fixture
def screen() -> Iterator[Pty]:
    pty = Pty(columns=200, rows=50)
    yield pty
    pty.close()


OWN_CONTROLS = re.compile(r"\x1b\[(?:\?(?:1|7|12|25|1049|2004)[hl]|[0-2]?[JK]|\d*(?:;\d+)*m|H|\d*[ACD])|[\b\r\n]")
"""Control sequences of the displays: cursor, colours, erasing what they have drawn; no title, no link."""


@pytest.mark.parametrize("kind", ["terminal", "live"])
def test_on_a_terminal_only_the_display_itself_controls_it(screen: Pty, kind: str) -> None:
    with standard_streams_on(screen):
        live = kind == "live"
        sink = LiveDisplay(screen.program, None) if live else ProgressDisplay(captions=True)
        sink.attach(ScriptedRun([]), None)
        for event in EVENTS:
            sink.write(event)
            screen.read()
        if live:
            screen.shows("plain")
        sink.write(summary(error=None))
        sink.close()
        screen.read()
    assert "plain" in screen.output
    assert "owned" not in screen.output
    left = OWN_CONTROLS.sub("", screen.output)
    assert not FORBIDDEN.search(left), ascii(FORBIDDEN.search(left))


def test_web_captions_hold_one_cue_for_one_answer(tmp_path: Path) -> None:
    path = tmp_path / "a.vtt"
    write_nasty_events(CaptionSink(str(path)))
    text = path.read_text(encoding="utf-8")
    check_lines(text)
    cues = webvtt.read(str(path)).captions
    assert [(cue.start, cue.end) for cue in cues] == [
        ("00:00:00.000", "00:00:02.000"),
        ("00:00:02.000", "00:00:05.000"),
    ]
    blocks = text.strip().split("\n\n")
    assert [block.split("\n")[0] for block in blocks] == ["WEBVTT", "1", "2"]
    assert text.count("-->") == len(cues)
    assert "<" not in text


@pytest.mark.parametrize("suffix", [".vtt", ".srt"])
def test_a_label_of_a_box_is_one_cue(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    sink = CaptionSink(str(path))
    sink.write(answer(0.0, json.dumps([{"bbox_2d": [1, 2, 3, 4], "label": NASTY}])))
    sink.close()
    text = path.read_bytes().decode()
    check_lines(text)
    assert text.count("-->") == 1


def test_subrip_captions_hold_one_cue_for_one_answer_and_no_tag(tmp_path: Path) -> None:
    path = tmp_path / "a.srt"
    write_nasty_events(CaptionSink(str(path)))
    text = path.read_text(encoding="utf-8")
    check_lines(text)
    cues = list(pysubs2.load(str(path)))
    assert [(cue.start, cue.end) for cue in cues] == [(0, 2000), (2000, 5000)]
    assert text.count("-->") == len(cues) == len(text.strip().split("\n\n"))
    assert not re.search(r"<[/A-Za-z!?]|\{\\|\{[A-Za-z]:", text)


def test_lines_of_json_keep_the_text_as_data(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_nasty_events(JsonlSink(str(path)))
    data = path.read_bytes().decode()
    check_lines(data)
    reported = [json.loads(line) for line in data.splitlines()]
    assert [line["text"] for line in reported if line["type"] == "answer"] == [NASTY, "another"]


def test_a_picture_holds_a_text_of_any_length() -> None:
    overlay = AllocationOverlay(
        np.zeros((64, 64, 3), np.uint8), np.zeros((0, 3), np.int32), np.zeros((2, 2), np.float32)
    )
    for text in (NASTY, "word " * 20_000, "x" * 100_000):
        assert draw(overlay, text, "note").shape == draw(overlay, "short", "note").shape


def test_a_replay_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    event = ReplayedAnswer(
        answer=0,
        frame_index=0,
        pts_s=0.0,
        query=NASTY,
        recorded=NASTY,
        text=f"{NASTY} changed",
        recorded_tokens=1,
        text_tokens=1,
        check=False,
        same=False,
    )
    for line in text_lines(event) + json_lines(event):
        assert "\n" not in line
        print_line(line)
    check_lines(capsys.readouterr().out)


def test_log_lines_are_printable(capfd: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("stream.x", logging.WARNING, __file__, 1, "%s", (NASTY,), None)
    logs.NotesHandler().emit(record)
    logs.say(NASTY)
    logs.show(NASTY)
    logs.write_now(NASTY)
    logs.report_traceback(RuntimeError(NASTY))
    err = capfd.readouterr().err
    check_lines(err)
    assert err.split("\n")[0].startswith("note: plain")
    check_lines(logs.DebugFormatter("%(message)s").format(record))
    logs.JsonHandler().emit(record)
    check_lines(capfd.readouterr().err)
    logs.say("x" * 10_000)
    assert len(capfd.readouterr().err) == logs.LINE_CHARS_MAX + 2


def test_an_error_is_one_printable_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nasty = NASTY.replace("\x00", "")
    for arguments in (
        ["caption", str(tmp_path / BROKEN_NAME)],
        ["replay", nasty],
        ["ask", nasty, "what?"],
        ["caption", "x.mp4", "--set", f"answer.query={nasty}x.y=1"],
        ["nonsense\x1b]0;owned\x07"],
    ):
        assert main(arguments) == 2
        out, err = capfd.readouterr()
        assert not out
        check_lines(err)
        assert err.startswith("error: "), err
        assert err.count("\n") == 1


def test_markup_in_a_text_means_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    PlainConsole().print("[bold]x[/bold] :smile: [link=http://x]y[/link]\x1b]0;owned\x07", soft_wrap=True)
    assert capsys.readouterr().out == "[bold]x[/bold] :smile: [link=http://x]y[/link]\n"
