"""Lines on stderr beside a display: notes for people, or with `--log-json` one JSON object a line for machines.

These lines are optional: if one cannot be written, it is lost, and the run goes on.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import msgspec

from arr_coc.errors import counted
from stream.control import leave_gone_terminal
from stream.errors import OutputFailed, ReaderGone
from stream.untrusted import printable, printable_json, printable_lines, printable_span, replace_surrogates

STDERR = 2

REPEAT_S = 10.0
"""Time in which equal records of the log are one line."""

MESSAGES_KNOWN = 64
"""Records that are compared with a new one."""

LINE_CHARS_MAX = 4000
"""Longest remark; the rest is left out, because a remark may quote a text of any length."""


class _Mode:
    """Settings of this process's log, chosen once, by the command line."""

    json_handler: logging.Handler | None = None
    verbose = False


def set_up(*, debug: bool, as_json: bool, verbose: bool = False) -> None:
    """Choose the form of the log and of the lines of `say`, and whether displays show all figures."""
    _Mode.verbose = verbose
    root = logging.getLogger()
    if _Mode.json_handler is not None:
        root.removeHandler(_Mode.json_handler)
        _Mode.json_handler = None
    if as_json:
        _Mode.json_handler = JsonHandler()
        _Mode.json_handler.addFilter(RepeatedRecords())
        root.addHandler(_Mode.json_handler)
    elif debug:
        handler = logging.StreamHandler()
        handler.setFormatter(DebugFormatter("%(relativeCreated)7d ms %(threadName)s %(name)s: %(message)s"))
        logging.basicConfig(handlers=[handler])
    else:
        notes = NotesHandler()
        notes.addFilter(RepeatedRecords())
        logging.basicConfig(handlers=[notes])
    if debug:
        for name in ("arr_coc", "stream"):
            logging.getLogger(name).setLevel(logging.DEBUG)


def as_json() -> bool:
    """Return whether stderr is for machines."""
    return _Mode.json_handler is not None


def verbose() -> bool:
    """Return whether displays show all figures."""
    return _Mode.verbose


def say(text: str, level: str = "info", event: str = "note", **fields: object) -> None:
    """Write a remark on stderr: the text alone, or an object with `fields`."""
    if as_json():
        write_line(json_line(level, {"event": event, **(fields or {"message": text})}))
    else:
        _print(text)


def report_traceback(error: BaseException) -> None:
    """Write the traceback of an error, for `--debug`."""
    show("".join(traceback.format_exception(error)).rstrip("\n"))


def json_line(level: str, fields: dict[str, Any], at_s: float | None = None) -> str:
    """Return `{"ts": …, "level": …, …}`; the time is UTC, in ISO 8601 with milliseconds."""
    if at_s is None:
        at = datetime.now(timezone.utc)
    else:
        at = datetime.fromtimestamp(at_s, timezone.utc)
    ts = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    entry = {"ts": ts, "level": level, **fields}
    try:
        line = msgspec.json.encode(entry, enc_hook=str)
    except UnicodeEncodeError:
        line = msgspec.json.encode(_whole(entry), enc_hook=str)
    return printable_json(line.decode())


def _whole(value: Any) -> Any:
    """Return the same with texts that UTF-8 can carry."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole(item) for item in value]
    if isinstance(value, str):
        return replace_surrogates(value)
    return value


def write_line(line: str) -> None:
    """Write a whole line at once, so that threads and a signal handler do not tear each other's lines."""
    try:
        sys.stderr.flush()
        number = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        show(line)
        return
    with suppress(OSError):
        os.write(number, f"{line}\n".encode("utf-8", "replace"))


def write_now(line: str) -> None:
    """Write a line on stderr that takes no lock and uses no buffer: for signal handlers."""
    with suppress(OSError):
        os.write(STDERR, f"{printable_span(line)}\n".encode("utf-8", "replace"))


def _print(line: str) -> None:
    """Write a line on stderr, as printable text."""
    text = printable_span(line)
    show(text if len(text) <= LINE_CHARS_MAX else f"{text[:LINE_CHARS_MAX]}…")


def show(lines: str) -> None:
    """Write lines on stderr, as printable text."""
    with suppress(OSError):
        print(printable_lines(lines), file=sys.stderr)


def print_line(line: str) -> None:
    """Print lines on stdout. Raises ReaderGone if its reader has gone, OutputFailed on a full disk.

    A terminal that is gone is no error: the user who closed it may want the run to go on.
    """
    try:
        print(printable_lines(line), flush=True)
    except BrokenPipeError as error:
        raise ReaderGone("the reader of stdout is gone") from error
    except OSError as error:
        if leave_gone_terminal():
            return
        raise OutputFailed(f"cannot write stdout: {error.strerror}") from error


class RepeatedRecords(logging.Filter):
    """Passes one of equal records in `REPEAT_S` seconds and counts the others; the next one that passes has their
    number."""

    def __init__(self) -> None:
        super().__init__()
        self._history: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        passed_s, repeat_count = self._history.pop((record.name, message), (float("-inf"), 0))
        repeats = 0 <= record.created - passed_s < REPEAT_S
        self._history[record.name, message] = (passed_s, repeat_count + 1) if repeats else (record.created, 0)
        while len(self._history) > MESSAGES_KNOWN:
            with suppress(KeyError, StopIteration):  # another thread was quicker
                del self._history[next(iter(self._history))]
        if repeat_count and not repeats:
            record.msg = f"{message} ({counted(repeat_count, 'more time')} before)"
            record.args = ()
        return not repeats


class NotesHandler(logging.Handler):
    """Warnings as lines for people, on the present stderr: a display may stand in for it."""

    def emit(self, record: logging.LogRecord) -> None:
        _print(f"note: {printable(record.getMessage())}")


class DebugFormatter(logging.Formatter):
    """Records as printable text, tracebacks in lines."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


class JsonHandler(logging.Handler):
    """Each record of the log as one object."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = "".join(traceback.format_exception(*record.exc_info))
        write_line(json_line(record.levelname.lower(), fields, record.created))
