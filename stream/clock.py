"""Monotonic time in nanoseconds, behind an object so that tests can move it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

AHEAD_S = 2 * 86_400.0
"""How far the wall clock may be ahead of the newest record before it could be set wrong."""

TRUSTED_AFTER_S = 3600.0
"""Time for which such a clock must run before anything is deleted by age."""

log = logging.getLogger(__name__)


class Clock(Protocol):
    def now_ns(self) -> int:
        """Monotonic nanoseconds; comparable between processes of one machine."""
        ...


class MonotonicClock:
    """The machine's CLOCK_MONOTONIC."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


class AgingClock:
    """Judge of the wall clock by which old records are deleted.

    One that is days ahead of the newest record may be set wrong, as on a board without a battery; it would delete all
    of them. It is trusted once it has run on for an hour, in which it may be set right.
    """

    def __init__(self, newest_s: float | None, name: str, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """`newest_s`: Unix time of the newest record that is there, None without one; `name`: of what holds them."""
        self._newest_s = newest_s
        self._name = name
        self._monotonic_s = monotonic_s
        self._began_s = monotonic_s()
        self._is_reported = False

    def is_trusted(self, now_s: float) -> bool:
        """Return whether records may be deleted by age at this Unix time; one warning says that they are not."""
        if self._newest_s is None or now_s - self._newest_s <= AHEAD_S:
            return True
        if self._monotonic_s() - self._began_s >= TRUSTED_AFTER_S:
            return True
        if not self._is_reported:
            self._is_reported = True
            days = (now_s - self._newest_s) / 86_400
            log.warning(
                "the clock is %.0f days ahead of the newest of %s: for an hour nothing there is deleted by age",
                *(days, self._name),
            )
        return False


class TimeOfDay:
    """Local time of day at which a live source showed its frames, by their media time."""

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self._offset_s: float | None = None

    def sync(self, pts_s: float, age_s: float) -> None:
        """Learn the offset from a frame that is `age_s` old. Each frame sets it anew: the wall clock may be changed."""
        self._offset_s = self._wall_s() - age_s - pts_s

    def at(self, pts_s: float) -> datetime | None:
        """Return the local time with its zone; None before the first frame."""
        if self._offset_s is None:
            return None
        return datetime.fromtimestamp(pts_s + self._offset_s).astimezone()


def clock_text(at_s: float) -> str:
    """Media time for people: `0:02.0`, `1:02:03.4`."""
    tenths = round(max(0.0, at_s) * 10)
    minutes, tenths = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{tenths // 10:02}.{tenths % 10}"
    if hours:
        return f"{hours}:{minutes:02}:{seconds}"
    return f"{minutes}:{seconds}"


def seconds_text(at_s: float) -> str:
    """Media time in whole seconds: `0:02`, `1:02:03`."""
    return clock_text(float(int(at_s)))[:-2]


def duration_text(seconds: float) -> str:
    """Return a duration for people: `9.5 s`, `0:59`, `1:02:03`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return seconds_text(seconds)


class DisplayClock:
    """Times of frames for people: media time, or for a live source the time of day, with its date if `dates`."""

    def __init__(self, live: bool, wall_s: Callable[[], float] = time.time, *, dates: bool = False) -> None:
        self._live = live
        self._dates = dates
        self._times = TimeOfDay(wall_s)

    def sync(self, pts_s: float, age_s: float) -> None:
        """Learn the time of day from a frame of a live source that is `age_s` old."""
        if self._live:
            self._times.sync(pts_s, age_s)

    def text(self, pts_s: float) -> str:
        """Return the time of a frame."""
        at = self._times.at(pts_s)
        if at is None:
            return clock_text(pts_s)
        if self._dates:
            return f"{at:%Y-%m-%d %H:%M:%S}"
        return f"{at:%H:%M:%S}"

    def day(self, pts_s: float) -> str:
        """Return the date of a frame; "" if `text` has it already, and for media time."""
        at = self._times.at(pts_s)
        if at is None or self._dates:
            return ""
        return f"{at:%A, %Y-%m-%d}"


@dataclass(slots=True)
class RateLimit:
    """Allowance that grows by `rate` a second up to `burst`; pure, the caller gives the time."""

    rate: float
    burst: float
    _left: float = 0.0
    _at_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Return whether one more is allowed now, and count it."""
        if self._at_s is None:
            self._left = self.burst
        else:
            self._left = min(self.burst, self._left + (now_s - self._at_s) * self.rate)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
