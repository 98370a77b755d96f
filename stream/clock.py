"""Monotonic time in nanoseconds, behind an object so that tests can move it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int:
        """Monotonic nanoseconds; comparable between processes of one machine."""
        ...


class MonotonicClock:
    """The machine's CLOCK_MONOTONIC."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


class FakeClock:
    """A clock that moves only when told, for tests."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, delta_ns: int) -> None:
        self._now_ns += delta_ns
