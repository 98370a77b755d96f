"""Runs without stages, for what shows and ends runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

from stream.clock import MonotonicClock
from stream.events import Event
from stream.monitor.statistics import RunStatistics
from stream.overlay import Overlay
from stream.sources import SourceInfo
from tests.event_maker import summary
from tests.waiting import LIMIT_S

INFO = SourceInfo("a", 64, 64, 25.0, 2_000_000_000, None, False, "h264", "yuv420p")


class ScriptedRun:
    """Gives the events, and then raises the error, if any."""

    source_info = INFO

    def __init__(self, events: list[Event], error: Exception | None = None) -> None:
        self.events, self.error = events, error
        self.told: list[str] = []
        self.asked: list[str] = []
        self.dropped: dict[str, int] = {}
        self.closed = False
        self.statistics = RunStatistics(MonotonicClock(), INFO.fps)

    def run(self) -> Iterator[Event]:
        try:
            for event in self.events:
                self.statistics.add(event)
                yield event
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True

    def take_overlay(self, slot: int) -> Overlay:
        raise AssertionError("no overlays here")

    def ask(self, query: str) -> None:
        self.asked.append(query)

    def processes(self) -> dict[str, int]:
        return {"frames": os.getpid()}

    def drops(self) -> dict[str, int]:
        return self.dropped

    def end(self) -> None:
        self.told.append("end")

    def cancel(self) -> None:
        self.told.append("cancel")


class EndlessRun(ScriptedRun):
    """Gives its events, and its summary once it has been told to end."""

    def __init__(self, events: list[Event]) -> None:
        super().__init__(events)
        self._ending = threading.Event()

    def run(self) -> Iterator[Event]:
        yield from self.events
        assert self._ending.wait(LIMIT_S), "nobody ended the run"
        yield summary(ended="interrupted")

    def end(self) -> None:
        super().end()
        self._ending.set()
