"""The display of a run whose stderr is for machines: every event but frames, reasons and pieces of text, one object a
line."""

from __future__ import annotations

import msgspec

from stream.events import (
    Answer,
    AnswerText,
    Asked,
    Event,
    FrameReady,
    Notice,
    Outage,
    Restarted,
    Skipped,
    Summary,
    Turned,
    Why,
)
from stream.logs import json_line, write_line, write_now
from stream.printable import printable
from stream.sinks.base import Display
from stream.sinks.remarks import clock_text, turned_text
from stream.sinks.terminal import print_answer

QUIET_NOTICES = {"loading"}
"""Codes of notices that tell of nothing unusual."""


class LogSink(Display):
    """Writes events to stderr as they happen. `captions`: answers go to stdout too, a plain line each."""

    def __init__(self, *, captions: bool) -> None:
        self._captions = captions

    def tell(self, remark: str) -> None:
        write_now(json_line("info", {"event": "signal", "message": remark}))

    def write(self, event: Event) -> None:
        if isinstance(event, (FrameReady, AnswerText, Why)):
            return
        fields = msgspec.to_builtins(event)
        write_line(json_line(level_of(event), {"event": fields.pop("type"), **fields}))
        if self._captions and isinstance(event, Turned):
            print_answer(clock_text(event.pts_s), turned_text(event))
        if self._captions and isinstance(event, Answer):
            text = printable(event.text)
            if text:
                print_answer(clock_text(event.pts_s), text)

    def close(self) -> None:
        """Every line is written already."""


def level_of(event: Event) -> str:
    """How much it matters, in the words of `logging`."""
    if isinstance(event, Summary):
        return "info" if event.error is None else "error"
    if isinstance(event, Notice):
        return "info" if event.code in QUIET_NOTICES else "warning"
    if isinstance(event, Outage):
        return "warning" if event.lasted_s is None else "info"
    if isinstance(event, Asked):
        return "info" if event.error is None else "warning"
    return "warning" if isinstance(event, (Restarted, Skipped)) else "info"
