"""Media time: PTS × time base, made where it is missing, never going backward."""

from __future__ import annotations

from fractions import Fraction

from arr_coc.types import NS_PER_S

DEFAULT_RATE = Fraction(25)
"""Frames a second where a stream names no usable rate: FFmpeg's own default for raw streams."""

MAX_RATE = Fraction(1000)
"""A rate above this is a tick rate that a container passes off as a frame rate."""

MAX_MEDIA_S = Fraction(100 * 365 * 24 * 3600)
"""A time beyond a hundred years from the origin is damage, not time."""


OVERTAKEN_STEP = Fraction(1, 10)
"""Of a period: how far a good PTS is moved that an earlier clamped one has overtaken. Small, so that the true times are
met again within a frame or two and nothing adds up over a long file."""


class MediaTimeline:
    """Turns a stream's PTS into media time, in the order in which frames are shown.

    `time_base` is seconds a tick, `rate` frames a second, `origin` the presentation time in seconds that counts as 0. A
    PTS that is missing, or beyond `MAX_MEDIA_S`, is made: the last time plus one period. One that goes backward, or
    stands still, is clamped to the same. `made_pts` and `clamped_pts` count both. All arithmetic is in fractions, so no
    error adds up.
    """

    def __init__(self, time_base: Fraction | None, rate: Fraction | None, origin: Fraction = Fraction(0)) -> None:
        usable = rate is not None and 0 < rate <= MAX_RATE
        self.rate = rate if rate is not None and usable else DEFAULT_RATE
        self.period = 1 / self.rate
        self._time_base = time_base if time_base is not None and time_base > 0 else None
        self._origin = origin
        self._last = -self.period
        self._newest_pts: Fraction | None = None
        self.made_pts = 0
        self.clamped_pts = 0

    def next_ns(self, pts: int | None) -> int:
        """Media time of the next frame shown, in nanoseconds rounded down; never negative, never backward."""
        time = self._seconds(pts)
        if time is None:
            self.made_pts += 1
            self._last += self.period
        elif time > self._last and time >= 0:
            self._last = time
        else:
            self.clamped_pts += 1
            overtaken = self._newest_pts is not None and time > self._newest_pts
            self._last += self.period * OVERTAKEN_STEP if overtaken else self.period
        if time is not None and (self._newest_pts is None or time > self._newest_pts):
            self._newest_pts = time
        return _floor_ns(self._last)

    def at_ns(self, pts: int | None) -> int | None:
        """Media time that a PTS stands for, in nanoseconds, without moving on; None where it stands for none."""
        time = self._seconds(pts)
        return None if time is None or time < 0 else _floor_ns(time)

    def _seconds(self, pts: int | None) -> Fraction | None:
        if pts is None or self._time_base is None:
            return None
        time = pts * self._time_base - self._origin
        return time if abs(time) <= MAX_MEDIA_S else None


def _floor_ns(time: Fraction) -> int:
    return time.numerator * NS_PER_S // time.denominator
