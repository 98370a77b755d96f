"""Ends a run after a length of wall time, as well as Ctrl-C would."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Protocol

from msgspec.structs import replace

from stream.events import Event, FrameReady, Summary

ELAPSED = "elapsed"
"""How such a run ended, in its summary."""


class Endable(Protocol):
    def end(self) -> None: ...

    def cancel(self) -> None: ...


class Timer(Protocol):
    def start(self) -> None: ...

    def cancel(self) -> None: ...


def _timer(seconds: float, call: Callable[[], None]) -> Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    return timer


class TimeLimit:
    """Stands between a run and those who end it, so that whoever was first counts.

    The time begins with the first frame, and passes whether or not more of them come.
    """

    def __init__(
        self, run: Endable, seconds: float, make_timer: Callable[[float, Callable[[], None]], Timer] = _timer
    ) -> None:
        self._run = run
        self._timer = make_timer(seconds, self._over)
        self._elapsed = False
        self._ended = False

    def end(self) -> None:
        self._ended = True
        self._run.end()

    def cancel(self) -> None:
        self._run.cancel()

    def events(self, events: Iterator[Event]) -> Generator[Event, None, None]:
        """The run's events; the summary says where it was the time that ended it."""
        started = False
        try:
            for event in events:
                if not started and isinstance(event, FrameReady):
                    started = True
                    self._timer.start()
                elif isinstance(event, Summary) and self._elapsed and event.ended == "interrupted":
                    event = replace(event, ended=ELAPSED)
                yield event
        finally:
            self._timer.cancel()

    def _over(self) -> None:
        if not self._ended:
            self._elapsed = True
            self._run.end()
