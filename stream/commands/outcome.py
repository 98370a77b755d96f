"""Exit status of a command, and lines on stderr about its outcome; imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream import logs

if TYPE_CHECKING:
    from stream.events import Summary

FAILED = 1
"""The run failed on the way."""

BAD_INPUT = 2
"""The request cannot be met: usage, configuration, source, model or output."""

INTERRUPTED = 130
"""Ended by Ctrl-C: 128 + SIGINT, as shells count."""

NOT_FOUND = 3
"""No watch matched."""

READER_GONE = 141
"""The reader of stdout has gone: 128 + SIGPIPE."""


def exit_status(summary: Summary, *, watching: bool = False) -> int:
    """Return the exit status of a run; `watching`: it had watches."""
    if summary.ended in ("interrupted", "cancelled"):
        return INTERRUPTED
    if watching and not summary.found:
        return NOT_FOUND
    return 0


def report_error(message: str) -> None:
    """Write an error in one line on stderr."""
    line = " ".join(message.split())
    logs.say(f"error: {line}", "error", "error", message=line)


def report_note(message: str) -> None:
    """Write a remark in one line on stderr."""
    logs.say(message, message=message.removeprefix("note: "))
