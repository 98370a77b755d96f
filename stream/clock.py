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


def clock_text(at_s: float) -> str:
    """Media time for people: `0:02.0`, `1:02:03.4`."""
    tenths = round(max(0.0, at_s) * 10)
    minutes, tenths = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{tenths // 10:02}.{tenths % 10}"
    return f"{hours}:{minutes:02}:{seconds}" if hours else f"{minutes}:{seconds}"


def seconds_text(at_s: float) -> str:
    """Media time in whole seconds: `0:02`, `1:02:03`."""
    return clock_text(float(int(at_s)))[:-2]


def duration_text(seconds: float) -> str:
    """Return a duration for people: `9.5 s`, `0:59`, `1:02:03`."""
    return f"{seconds:.1f} s" if seconds < 10 else seconds_text(seconds)
