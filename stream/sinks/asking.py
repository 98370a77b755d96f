"""A display whose run is also asked what stands on standard input, a question a line."""

from __future__ import annotations

from stream import logs
from stream.events import Event, Summary
from stream.questions import QuestionReader
from stream.sinks.base import Display, Watched


class AskingDisplay(Display):
    """Shows a run on `shown`, and asks each line that is read from `descriptor` until the run ends."""

    def __init__(self, shown: Display, descriptor: int) -> None:
        self._shown = shown
        self._descriptor = descriptor
        self._reader: QuestionReader | None = None

    def attach(self, run: Watched, frames: int | None) -> None:
        self._shown.attach(run, frames)
        self._reader = QuestionReader(self._descriptor, run.ask, logs.say)

    def tell(self, remark: str) -> None:
        """Safe in a signal handler where `shown` is."""
        self._shown.tell(remark)

    def write(self, event: Event) -> None:
        if isinstance(event, Summary):
            self._stop_asking()
        self._shown.write(event)

    def close(self) -> None:
        self._stop_asking()
        self._shown.close()

    def _stop_asking(self) -> None:
        if self._reader is not None:
            self._reader.close()
