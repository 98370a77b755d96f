"""Displays of a run for the person at the terminal."""

from __future__ import annotations

from stream import logs
from stream.sinks.base import Display


def open_display(*, captions: bool) -> Display:
    """Progress for people, or lines for machines. `captions`: answers go to stdout."""
    if logs.as_json():
        from stream.display.lines import LogSink

        return LogSink(captions=captions)
    from stream.display.progress import TerminalSink

    return TerminalSink(captions=captions)
