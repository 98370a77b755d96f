"""Chooses what a run without a live view is shown on."""

from __future__ import annotations

from stream import logs
from stream.sinks.base import Display


def open_display(*, captions: bool) -> Display:
    """Progress for people, or lines for machines. `captions`: answers go to stdout."""
    if logs.as_json():
        from stream.sinks.log_lines import LogSink

        return LogSink(captions=captions)
    from stream.sinks.terminal import TerminalSink

    return TerminalSink(captions=captions)
