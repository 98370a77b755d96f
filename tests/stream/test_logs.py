"""With --log-json stderr is one JSON object a line, for any writer."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream import logs
from stream.commands.outcome import report_error, report_note
from stream.commands.run import report_written
from stream.display.choice import open_display
from stream.display.lines import JsonDisplay, LinesDisplay, log_level
from stream.display.progress import ProgressDisplay
from stream.errors import OutputFailed
from stream.events import (
    AnswerDeltaEvent,
    Cut,
    Event,
    Notice,
    Outage,
    QueryChanged,
    Restarted,
    Skipped,
    Started,
    Summary,
)
from tests.support.events import answer, frame, summary


@pytest.fixture
def machine() -> Iterator[None]:
    logs.set_up(debug=False, as_json=True)
    yield
    logs.set_up(debug=False, as_json=False)


def lines(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().err.splitlines()]


@pytest.mark.usefixtures("machine")
def test_records_of_the_log_are_objects(capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("stream.x").warning("lost %d\nlines", 3)
    try:
        raise KeyError("oops")
    except KeyError:
        logging.getLogger("stream.y").exception("failed")
    first, second = lines(capfd)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("ts"))
    assert first == {"level": "warning", "logger": "stream.x", "message": "lost 3\nlines"}
    assert (second["level"], second["message"]) == ("error", "failed")
    assert "KeyError: 'oops'" in second["exception"]


@pytest.mark.usefixtures("machine")
def test_events_are_objects_but_frames_and_pieces_of_text(capfd: pytest.CaptureFixture[str]) -> None:
    sink = open_display(captions=True)
    assert isinstance(sink, JsonDisplay)
    for event in (
        Started(source="camera", model="m", query="?", backend="cpu"),
        frame(0, 0.0),
        AnswerDeltaEvent(answer=0, text="a "),
        answer(0.5, "a cat"),
        answer(0.6, "  "),
        summary(),
    ):
        sink.write(event)
    sink.show_message("finishing")
    sink.close()
    output = capfd.readouterr()
    records = [json.loads(line) for line in output.err.splitlines()]
    assert [record["event"] for record in records] == ["started", "answer", "answer", "summary", "signal"]
    assert records[1]["text"] == "a cat"
    assert records[-1]["message"] == "finishing"
    assert all(list(record)[:3] == ["ts", "level", "event"] for record in records)
    assert output.out == "0:00.5  a cat\n"


@pytest.mark.usefixtures("machine")
def test_captions_that_go_to_a_file_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    open_display(captions=False).write(answer(0.5, "a cat"))
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("machine")
def test_remarks_of_the_command_are_objects_too(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a.vtt"
    path.touch()
    report_error("cannot\nread")
    report_note("note: starting afresh")
    report_written([str(path), "nothing-came.m3u8"])
    records = lines(capfd)
    assert [(record["level"], record["event"]) for record in records] == [
        ("error", "error"),
        ("info", "note"),
        ("info", "wrote"),
    ]
    assert (records[0]["message"], records[1]["message"], records[2]["path"]) == (
        "cannot read",
        "starting afresh",
        str(path),
    )


def test_people_are_informed_in_plain_lines(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a.vtt"
    path.touch()
    logs.set_up(debug=False, as_json=False)
    report_error("cannot\nread")
    report_note("note: starting afresh")
    report_written([str(path), "nothing-came.m3u8"])
    logs.NotesHandler().emit(logging.makeLogRecord({"msg": "careful"}))
    assert capfd.readouterr().err == f"error: cannot read\nnote: starting afresh\nwrote {path}\nnote: careful\n"
    display = open_display(captions=False)
    assert isinstance(display, ProgressDisplay)
    display.close()


@pytest.mark.parametrize("as_json", [True, False])
def test_stderr_needs_no_reader(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb", buffering=0) as closed_pipe:
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(closed_pipe, write_through=True))
        logs.set_up(debug=False, as_json=as_json)
        try:
            logging.getLogger("stream.x").warning("lost")
            report_note("wrote it")
            sink = open_display(captions=False)
            sink.write(Notice(code="pts-repaired", message="repaired"))
            sink.write(summary())
            sink.close()
        finally:
            logs.set_up(debug=False, as_json=False)


def test_ctrl_c_is_obeyed_without_a_reader_of_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(logs, "STDERR", writer)
    for sink in (JsonDisplay(captions=False), ProgressDisplay(captions=False), LinesDisplay(None)):
        sink.show_message("stopping now")
    os.close(writer)


def test_stderr_that_is_no_file_is_written_too(machine: None, capsys: pytest.CaptureFixture[str]) -> None:
    logs.say("hello")
    assert json.loads(capsys.readouterr().err)["message"] == "hello"


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (Notice(code="loading", message="loading m"), "info"),
        (Notice(code="model-world", message="only drawn scenes"), "warning"),
        (Cut(frame_index=1, pts_s=0.1, score=0.5), "info"),
        (Skipped(frame_index=1, pts_s=0.1, what="packet 1", reason="bad"), "warning"),
        (Outage(frame_index=1, pts_s=0.1, reason="timed out"), "warning"),
        (Outage(frame_index=1, pts_s=0.1, reason="timed out", lasted_s=2.0), "info"),
        (Restarted(process="answers", cause="killed", count=1), "warning"),
        (QueryChanged(query="?"), "info"),
        (QueryChanged(query="?", error="too long"), "warning"),
        (summary(), "info"),
        (summary(ended="error", error="it fell"), "error"),
    ],
)
def test_levels(event: Event, level: str) -> None:
    assert log_level(event) == level
    assert isinstance(event, Summary) or level != "error"


def test_text_that_utf8_cannot_carry_is_written_all_the_same() -> None:
    fields = {"path": "a\udcff.mp4", "others": ["b\udcff", 2], "more": {"name": "c\udcff"}}
    entry = json.loads(logs.json_line("info", fields))
    assert entry["path"].startswith("a")
    assert entry["others"][1] == 2
    assert entry["more"]["name"].startswith("c")


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_full_disk_behind_stdout_is_an_error_and_a_closed_terminal_is_none(
    monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    monkeypatch.setattr(logs, "leave_gone_terminal", lambda: is_gone)
    if is_gone:
        logs.print_line("a caption")
        return
    with pytest.raises(OutputFailed, match="cannot write stdout: No space left on device"):
        logs.print_line("a caption")


def test_equal_records_are_counted_and_not_repeated() -> None:
    repeated = logs.RepeatedRecords()

    def passed(message: str, at_s: float) -> str | None:
        record = logging.makeLogRecord({"name": "x", "msg": "%s happens", "args": (message,), "created": at_s})
        return record.getMessage() if repeated.filter(record) else None

    assert passed("it", 100.0) == "it happens"
    assert [passed("it", 100.0 + 0.001 * at) for at in range(1000)] == [None] * 1000
    assert passed("another", 101.0) == "another happens"
    assert passed("it", 110.0) == "it happens (1000 more times before)"
    assert passed("it", 121.0) == "it happens"
    assert passed("it", 50.0) == "it happens", "the clock was set back"
    assert all(passed(str(number), 122.0) for number in range(1000))
    assert len(repeated._history) == logs.MESSAGES_KNOWN
