"""Without a terminal a run is plain lines."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
import threading

import pytest

from stream.display.lines import JsonDisplay, LinesDisplay, RepeatedCall, figures_text
from stream.events import Cut, Notice, Outage, QueryChanged, Restarted
from stream.monitor.statistics import ActiveOutage
from tests.support.clock import FakeClock
from tests.support.events import answer, frame, summary, turned
from tests.support.figures import FIGURES
from tests.support.network import LIMIT_S
from tests.support.runs import ScriptedRun


def test_answers_go_to_stdout_and_what_happens_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    display = LinesDisplay(None, clock=FakeClock())
    display.attach(ScriptedRun([]), None)
    for event in (
        frame(0, 0.0),
        answer(0.0, "hello\nworld"),
        answer(0.5, ""),
        Cut(frame_index=9, pts_s=1.0, score=0.9),
        Outage(frame_index=9, pts_s=1.0, reason="no route"),
        Outage(frame_index=9, pts_s=1.0, reason="no route", lasted_s=3.0, attempts=2),
        Restarted(process="answers", cause="killed by SIGKILL", count=2),
        QueryChanged(query="Who?"),
        answer(2.0, "bye"),
        summary(ended="elapsed"),
    ):
        display.write(event)
    display.close()
    out, err = capsys.readouterr()
    assert out == "0:00.0  hello world\n0:02.0  bye\n"
    assert err.splitlines() == [
        "cut at 0:01.0",
        "source lost at 0:01.0: no route",
        "source back after 3.0 s and 2 attempts",
        "restarting answers (2 restarts so far): killed by SIGKILL",
        "asked: Who?",
        "3 frames (0:01.0) · 2 answers · 1 cut · 3.1× less work · 2 frames a second",
    ]


def test_figures_come_from_time_to_time_also_without_events(capfd: pytest.CaptureFixture[str]) -> None:
    run, polls = ScriptedRun([]), threading.Semaphore(0)
    run.drops = lambda: polls.release() or {"capture.replaced": 2}  # type: ignore[method-assign, func-returns-value]
    display = LinesDisplay(0.01)
    display.attach(run, None)
    run.statistics.add(frame(0, 1.5))
    assert all(polls.acquire(timeout=LIMIT_S) for _ in range(3))
    display.close()
    assert "figures" not in {thread.name for thread in threading.enumerate()}
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(
        line.startswith("0:01.5 / 0:02.0  ") and " frames per second" in line and "2 frames dropped" in line
        for line in lines
    )


def test_the_line_of_figures() -> None:
    assert figures_text(FIGURES, "1:12.0 / 1:30.4") == (
        "1:12.0 / 1:30.4  25.0 frames per second · delay 4 ms, p95 8 ms · answer 310 to 621 ms"
        " · 64 of 240 tokens · 3 frames, 2 answers dropped"
    )
    outage_figures = dataclasses.replace(FIGURES, outage=ActiveOutage("no route", 12.0))
    assert "25.0 frames per second · source lost for 0:12 · " in figures_text(outage_figures, "1:12.0")


def test_while_a_model_is_loaded_that_is_reported_once_and_a_question_waits(capfd: pytest.CaptureFixture[str]) -> None:
    run, question_event, polls = ScriptedRun([]), threading.Event(), threading.Semaphore(0)
    run.send = lambda command: question_event.set()  # type: ignore[method-assign, assignment]
    run.drops = lambda: polls.release() or {}  # type: ignore[method-assign, func-returns-value]
    reader, writer = os.pipe()
    display = LinesDisplay(0.01, questions_fd=reader)
    display.attach(run, None)
    display.write(Notice(code="loading", message="loading tiny"))
    os.write(writer, b"Who?\n")
    assert question_event.wait(LIMIT_S)
    assert all(polls.acquire(timeout=LIMIT_S) for _ in range(3))
    display.close()
    assert capfd.readouterr().err == "loading tiny …\nasking, once the model is loaded: Who?\n"
    os.close(reader)
    os.close(writer)


def test_equal_answers_are_one_line_and_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    display = LinesDisplay(None, clock=FakeClock())
    display.attach(ScriptedRun([]), None)
    for event in (
        *(answer(at_s, "a cat") for at_s in (0.0, 2.0, 4.0, 6.0)),
        answer(8.0, "a dog"),
        answer(10.0, "a dog"),
        QueryChanged(query="Who?"),
        answer(12.0, "a dog"),
        answer(14.0, "a dog"),
        turned(14.0),
        answer(16.0, "a cat"),
        answer(18.0, "a cat"),
        summary(),
    ):
        display.write(event)
    display.close()
    assert capsys.readouterr().out.splitlines() == [
        "0:00.0  a cat",
        "0:02.0 to 0:06.0  the same, 3 times",
        "0:08.0  a dog",
        "0:10.0  the same",
        "0:12.0  a dog",
        "0:14.0  the same",
        "0:14.0  yes (97 %): is it here?",
        "0:16.0  a cat",
        "0:18.0  the same",
    ]


def test_lines_name_their_camera(capsys: pytest.CaptureFixture[str]) -> None:
    display = LinesDisplay(None, ["door", "big-yard"])
    door, yard = display.camera("door"), display.camera("big-yard")
    for camera in (door, yard):
        camera.attach(ScriptedRun([]), None)
        camera.write(Notice(code="loading", message="loading tiny"))
        camera.write(Notice(code="model-world", message="knows scenes only"))
        camera.write(Restarted(process="answers", cause="x", count=1))
        for event in (answer(0.0, "no person"), answer(2.0, "no person"), answer(4.0, "no person")):
            camera.write(event)
    door.write(turned(4.0))
    door.write(Restarted(process="frames", cause="it hung", count=1))
    door.write(QueryChanged(query="Who?"))
    yard.write(summary())
    display.show_failure("big-yard", "it broke")
    display.close()
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "door      0:00.0  no person",
        "big-yard  0:00.0  no person",
        "door      0:02.0 to 0:04.0  the same, 2 times",
        "door      0:04.0  yes (97 %): is it here?",
        "big-yard  0:02.0 to 0:04.0  the same, 2 times",
    ]
    lines = err.splitlines()
    assert lines[:2] == ["loading tiny …", "note: knows scenes only"], "once"
    assert lines[2:4] == ["door      restarting frames: it hung", "door      asked: Who?"]
    assert lines[4].startswith("big-yard  ")
    assert lines[5] == "error: big-yard: it broke"


def test_json_lines_name_their_camera(capsys: pytest.CaptureFixture[str]) -> None:
    display = JsonDisplay(["door"], captions=True)
    door = display.camera("door")
    door.attach(ScriptedRun([]), None)
    for event in (frame(0, 0.0), Notice(code="x", message="look"), answer(0.0, "no person")):
        door.write(event)
    display.close()
    out, err = capsys.readouterr()
    entries = [json.loads(line) for line in err.splitlines()]
    assert [(entry["event"], entry["camera"]) for entry in entries] == [("notice", "door"), ("answer", "door")]
    assert out.splitlines() == ["door  0:00.0  no person"]


def test_a_message_of_a_signal_is_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    LinesDisplay(None).show_message("finishing soon")
    assert capfd.readouterr().err == "finishing soon\n"


def test_stderr_needs_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", closefd=True) as closed_pipe:
        monkeypatch.setattr(sys, "stderr", closed_pipe)
        display = LinesDisplay(None)
        display.attach(ScriptedRun([]), None)
        display.write(QueryChanged(query="Who?"))
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)


def test_figures_that_cannot_be_had_do_not_end_those_that_follow() -> None:
    calls: list[int] = []
    recovery = threading.Event()

    def call() -> None:
        calls.append(len(calls))
        if len(calls) < 3:
            raise OSError(errno.EMFILE, "too many open files")
        recovery.set()

    repeated = RepeatedCall(0.001, call)
    assert recovery.wait(LIMIT_S)
    repeated.close()
