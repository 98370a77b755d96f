"""Media time of files and live sources, waits between attempts to reconnect, and pacing."""

from __future__ import annotations

from fractions import Fraction

from arr_coc.types import NS_PER_S

DEFAULT_RATE = Fraction(25)
"""Frames a second where a stream names no usable rate: FFmpeg's own default for raw streams."""

MAX_RATE = Fraction(1000)
"""A rate above this is a tick rate that a container passes off as a frame rate."""

PAUSE_MAX_NS = 60 * NS_PER_S
"""Longest pause between two frames that a paced source keeps; a longer one is a damaged timestamp, and is left out."""

MAX_MEDIA_S = Fraction(100 * 365 * 24 * 3600)
"""A time beyond a hundred years from the origin is damage, not time."""


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
            # Of a period: how far a good PTS is moved that an earlier clamped one has overtaken. Small, so that the
            # true times are met again within a frame or two and nothing adds up over a long file.
            self._last += self.period * Fraction(1, 10) if overtaken else self.period
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


FIRST_WAIT_S, LONGER_WAIT_S, LONGEST_WAIT_S = 0.2, 0.5, 2.0
"""Before the first attempt to reach a lost source again, and at most: each wait is twice the one before. Half a second
leaves one and a half for opening, the next key frame and the first word, so that text comes within 2 s of the source's
return. The longest is for what has been away for `LONG_OUTAGE` attempts."""

LONG_OUTAGE = 120


class LiveTimeline:
    """Media time of a live source, from 0 at its first frame.

    Within a connection it follows the PTS. Where one is missing, goes backward, or leaps, and from the last frame
    before an outage to the first one after it, it follows the clock. `made_pts` counts the missing, `clamped_pts` the
    others.
    """

    def __init__(self) -> None:
        self._time_base: Fraction | None = None
        self._period_ns = int(NS_PER_S / DEFAULT_RATE)
        self._anchor: tuple[int, int] | None = None
        self._last: tuple[int, int] | None = None
        self.made_pts = 0
        self.clamped_pts = 0

    def connected(self, time_base: Fraction | None, rate: Fraction | None) -> None:
        """A new connection, whose PTS have nothing to do with those before."""
        self._time_base = time_base if time_base is not None and time_base > 0 else None
        usable = rate if rate is not None and 0 < rate <= MAX_RATE else DEFAULT_RATE
        self._period_ns = int(NS_PER_S / usable)
        self._anchor = None

    def media_ns(self, pts: int | None, now_ns: int) -> int:
        """Media time of the next frame, which left the decoder at `now_ns`; always later than the one before."""
        ticked = None if pts is None or self._time_base is None else int(pts * self._time_base * NS_PER_S)
        by_clock_ns = self._by_clock(now_ns)
        media_ns = by_clock_ns
        if ticked is None:
            self.made_pts += 1
            self._anchor = None
        elif self._anchor is None:
            self._anchor = ticked, by_clock_ns
        else:
            by_pts_ns = self._anchor[1] + ticked - self._anchor[0]
            assert self._last is not None
            # a PTS this far ahead of the clock is damage, or another clock: no live source is that early
            if self._last[0] < by_pts_ns <= by_clock_ns + 10 * NS_PER_S:
                media_ns = by_pts_ns
            else:
                self.clamped_pts += 1
                self._anchor = ticked, by_clock_ns
        self._last = media_ns, now_ns
        return media_ns

    def _by_clock(self, now_ns: int) -> int:
        if self._last is None:
            return 0
        last_media_ns, last_now_ns = self._last
        elapsed_ns = now_ns - last_now_ns
        return last_media_ns + (elapsed_ns if elapsed_ns > 0 else self._period_ns)


class Backoff:
    """Waits between attempts to reach a lost source: growing, and short again after a steady connection."""

    def __init__(self) -> None:
        self._count = 0

    def next_s(self) -> float:
        self._count += 1
        if self._count > LONG_OUTAGE:
            return LONGEST_WAIT_S
        return min(FIRST_WAIT_S * 2 ** (self._count - 1), LONGER_WAIT_S)

    def reset(self) -> None:
        self._count = 0


class Pacer:
    """Pacer of a source that comes in bursts (HLS: a segment at a time), by its media time.

    The first frame is due at once; a late one moves all that follow, and so does one after more than PAUSE_MAX_NS.
    """

    def __init__(self) -> None:
        self._start_ns: int | None = None

    def due_ns(self, media_ns: int, now_ns: int) -> int:
        """The time at which a frame with this media time is to be handed on; `now_ns` where it is late."""
        if self._start_ns is None or not 0 <= self._start_ns + media_ns - now_ns <= PAUSE_MAX_NS:
            self._start_ns = now_ns - media_ns
        return self._start_ns + media_ns
