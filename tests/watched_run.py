"""A run that does nothing but be looked at, for tests of what looks."""

from __future__ import annotations

import os

from stream.clock import Clock, MonotonicClock
from stream.monitor.statistics import RunStatistics
from stream.sources import SourceInfo

INFO = SourceInfo("camera", 64, 48, 25.0, None, None, True, "h264", "yuv420p")


class WatchedRun:
    """Remembers what was asked."""

    source_info = INFO

    def __init__(self, clock: Clock | None = None) -> None:
        self.statistics = RunStatistics(clock or MonotonicClock(), INFO.fps)
        self.questions: list[str] = []

    def ask(self, query: str) -> None:
        self.questions.append(query)

    def processes(self) -> dict[str, int]:
        return {"frames": os.getpid(), "answers": 2**22 + 1}

    def drops(self) -> dict[str, int]:
        return {"capture.replaced": 2, "texture.replaced": 0}
