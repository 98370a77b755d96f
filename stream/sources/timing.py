"""Media time of files and live sources, waits between attempts to reconnect, and pacing."""

from __future__ import annotations

from collections import deque
from fractions import Fraction

from arr_coc.types import NS_PER_S

DEFAULT_RATE = Fraction(25)
"""Frames per second of a stream without a usable rate: FFmpeg's default for raw streams."""

MAX_RATE = Fraction(1000)
"""A higher rate is a tick rate that a container reports as its frame rate."""

PAUSE_MAX_NS = 60 * NS_PER_S
"""Longest pause between two frames of a paced source; a longer one is a damaged timestamp and is skipped."""

MAX_MEDIA_S = Fraction(100 * 365 * 24 * 3600)
"""Times more than a hundred years from the origin count as damaged."""


STEP_MAX_S = 1
"""Longest distance, in seconds, of two frames at the border of two parts of a joined recording."""


LEAP_S = 10
"""Leap of the PTS, in seconds, from which a part of a joined stream has begun: that of FFmpeg's own command."""

FORMER_PARTS_MAX = 16
"""Number of earlier parts of a joined recording whose last frames are recognised."""


class MediaTimeline:
    """Converter of a stream's PTS to media time, in presentation order.

    `time_base` is in seconds per tick, `rate` in frames per second; `origin` is the presentation time in seconds that
    counts as 0. A missing PTS, or one beyond `MAX_MEDIA_S`, is made: the last time plus one period. A PTS that does not
    increase is clamped to the same. `made_pts` and `clamped_pts` count both. All arithmetic is in fractions, so no
    error accumulates.

    If the PTS after one that went back go on from there, another part with its own clock has begun, as in joined
    recordings: media time goes on one period after the last frame. With `bridges_gaps` so it does after a leap forward.
    """

    def __init__(
        self,
        time_base: Fraction | None,
        rate: Fraction | None,
        origin: Fraction = Fraction(0),
        *,
        bridges_gaps: bool = False,
    ) -> None:
        self._bridges_gaps = bridges_gaps
        usable = rate is not None and 0 < rate <= MAX_RATE
        if rate is not None and usable:
            self.rate = rate
        else:
            self.rate = DEFAULT_RATE
        self.period = 1 / self.rate
        self._time_base = time_base if time_base is not None and time_base > 0 else None
        self._origin = origin
        self._last = -self.period
        self._newest_pts: Fraction | None = None
        self._restart: tuple[Fraction, Fraction] | None = None
        self._former: deque[tuple[Fraction, Fraction]] = deque(maxlen=FORMER_PARTS_MAX)
        self.made_pts = 0
        self.clamped_pts = 0

    def next_ns(self, pts: int | None) -> int:
        """Return the media time of the next frame, in nanoseconds rounded down; never negative, never backward."""
        time = self._seconds(pts)
        if time is not None and self._begins_part(time):
            time = self._seconds(pts)
        if time is None:
            self.made_pts += 1
            self._last += self.period
        elif self._is_late(time):
            self.clamped_pts += 1
            self._last += self.period * Fraction(1, 10)
            return _floor_ns(self._last)
        elif time > self._last and time >= 0:
            self._last = time
        else:
            self.clamped_pts += 1
            overtaken = self._newest_pts is not None and time > self._newest_pts
            # A good PTS that an earlier clamped one has overtaken advances by this share of a period: small, so that
            # true times resume within a frame or two and no delay accumulates over a long file.
            self._last += self.period * Fraction(1, 10) if overtaken else self.period
            if self._newest_pts is not None and self._newest_pts - time >= 2 * self.period:
                self._restart = time, self._last
        if time is not None and (self._newest_pts is None or time > self._newest_pts):
            self._newest_pts = time
        return _floor_ns(self._last)

    def _begins_part(self, time: Fraction) -> bool:
        """Return True, and move the origin, if a time continues from the one before, which went back, or leaps."""
        restart = self._restart
        self._restart = None
        if self._newest_pts is None:
            return False
        if self._bridges_gaps and time - self._newest_pts > LEAP_S:
            self._move(self._last + self.period - time)
            return True
        if restart is None:
            return False
        first, media_time = restart
        # a stray PTS is followed by one beyond the newest, on the former clock
        if not first < time <= min(first + STEP_MAX_S, self._newest_pts):
            return False
        self._move(media_time - first)
        return True

    def _move(self, by: Fraction) -> None:
        """Begin a part whose media times are later by this than those of its PTS."""
        assert self._newest_pts is not None
        self._former.append((self._origin, self._newest_pts))
        self._origin -= by
        self._newest_pts = self._last

    def _is_late(self, time: Fraction) -> bool:
        """Return True for the last frame of an earlier part: if parts have different PIDs, MPEG-TS ends the earlier
        one's last packet after the first ones of the next part, or at the end of the file."""
        if time <= self._last + STEP_MAX_S:
            return False
        clock_time = time + self._origin
        return any(newest <= clock_time - origin <= newest + STEP_MAX_S for origin, newest in self._former)

    def at_ns(self, pts: int | None) -> int | None:
        """Return the media time of a PTS in nanoseconds, without advancing; None if the PTS is unusable."""
        time = self._seconds(pts)
        if time is None or time < 0:
            return None
        return _floor_ns(time)

    def _seconds(self, pts: int | None) -> Fraction | None:
        if pts is None or self._time_base is None:
            return None
        time = pts * self._time_base - self._origin
        return time if abs(time) <= MAX_MEDIA_S else None


def _floor_ns(time: Fraction) -> int:
    return time.numerator * NS_PER_S // time.denominator


FIRST_WAIT_S = 0.2
LONGER_WAIT_S = 0.5
LONGEST_WAIT_S = 2.0
"""Waits before attempts to reopen a lost source: the first, the usual limit, and the limit after `LONG_OUTAGE`
attempts; each wait is twice the one before. A limit of 0.5 s leaves 1.5 s for opening, the next key frame and the first
token, so that text arrives within 2 s of the source's return."""

LONG_OUTAGE = 120


RATE_WINDOW_NS = NS_PER_S
"""Length of the windows in which a stream's times are compared with their arrival."""

RATE_WINDOWS = 4
"""Consecutive windows with a like change after which a rate is off: a stall and its burst change one or two."""

RATE_TOLERANCE = 0.05
"""Change of the lateness, in parts of a window, from which a rate may be off; a quartz errs by far less."""


class RateCheck:
    """Comparison of a stream's times with their arrival, to find a clock whose rate is steadily off.

    The least lateness within a window is that of a frame which nothing delayed. Jitter does not change it; it comes
    back after a stall, and rises or falls by the same amount in each window if the rate is off.
    """

    def __init__(self, pts_ns: int, now_ns: int) -> None:
        """The first frame has this PTS, and arrives at `now_ns`."""
        self._first = pts_ns, now_ns
        self._begin_ns = now_ns
        self._least_ns: int | None = None
        self._before_ns: int | None = None
        self._lowest_ns = 0
        self._changes: list[float] = []

    def is_off(self, pts_ns: int, now_ns: int) -> bool:
        """Add a frame; return True once the rate is off."""
        late_ns = (now_ns - self._first[1]) - (pts_ns - self._first[0])
        if self._least_ns is None:
            self._least_ns = late_ns
        else:
            self._least_ns = min(self._least_ns, late_ns)
        length_ns = now_ns - self._begin_ns
        if length_ns < RATE_WINDOW_NS:
            return False
        least_ns = self._least_ns
        before_ns = self._before_ns
        self._begin_ns = now_ns
        self._least_ns = None
        self._before_ns = least_ns
        # lateness that falls towards what it was before is a stall that is caught up with
        catches_up = before_ns is not None and self._lowest_ns <= least_ns < before_ns
        self._lowest_ns = min(self._lowest_ns, least_ns)
        if before_ns is None or catches_up:
            self._changes.clear()
            return False
        self._changes = [*self._changes, (least_ns - before_ns) / length_ns][-RATE_WINDOWS:]
        if len(self._changes) < RATE_WINDOWS:
            return False
        # a rate is off if the lateness grows, or falls, about as much in each window
        sign = -1 if self._changes[0] < 0 else 1
        sizes = [sign * change for change in self._changes]
        return min(sizes) >= RATE_TOLERANCE and max(sizes) <= 2 * min(sizes)


EARLY_MAX_NS = 10 * NS_PER_S
"""Longest time by which a PTS may be ahead of the clock. Beyond it there is damage, or another clock: no live source is
that early."""


class OpeningDelay:
    """Delay of the first frame of a connection, learnt from those that follow.

    Opening reads on until it knows the streams, and a server may begin with what it has kept. So the first frames come
    all at once, and each is less late than the one before.
    """

    def __init__(self, pts_ns: int, now_ns: int) -> None:
        """The first frame has this PTS, and arrives at `now_ns`."""
        self._first = pts_ns, now_ns
        self.delay_ns = 0

    def add(self, pts_ns: int, now_ns: int) -> None:
        """Note a frame that follows; later ones say nothing of the opening, but have a clock's drift."""
        since_ns = now_ns - self._first[1]
        early_ns = (pts_ns - self._first[0]) - since_ns
        if since_ns < RATE_WINDOW_NS and early_ns <= EARLY_MAX_NS:
            self.delay_ns = max(self.delay_ns, early_ns)


class LiveTimeline:
    """Media time of a live source, from 0 at its first frame.

    Within a connection it follows the PTS. It follows the clock if a PTS is missing, goes backward, or leaps, if the
    rate of the PTS is steadily off, and from the last frame before an outage to the first one after it, which is taken
    to be as late as the first one of the connection before. `made_pts` counts the missing PTS, `clamped_pts` the
    others.
    """

    def __init__(self) -> None:
        self._has_times = True
        self._checks_rate = False
        self._check: RateCheck | None = None
        self._opening: OpeningDelay | None = None
        self._delay_ns = 0
        self._arrival: tuple[int, int] | None = None
        self._origin = 0, 0
        self._last_pts_ns: int | None = None
        self._time_base: Fraction | None = None
        self._period_ns = int(NS_PER_S / DEFAULT_RATE)
        self._anchor: tuple[int, int] | None = None
        self._last: tuple[int, int] | None = None
        self.made_pts = 0
        self.clamped_pts = 0

    @property
    def is_rate_off(self) -> bool:
        """True if media time follows the clock until the next connection, because the rate of the PTS is off."""
        return self._arrival is not None

    def connected(
        self,
        time_base: Fraction | None,
        rate: Fraction | None,
        *,
        has_times: bool = True,
        checks_rate: bool = False,
    ) -> None:
        """Start a new connection, whose PTS are independent of those before.

        Args:
            time_base: Seconds per tick of the PTS.
            rate: Frames per second.
            has_times: False if the PTS mean nothing, so that media time follows the clock.
            checks_rate: Frames arrive as they are taken, so that PTS whose rate differs from the clock's are wrong.
        """
        if self._opening is not None:
            # by arrival, media time has the delay in it already
            self._delay_ns = 0 if self.is_rate_off else self._opening.delay_ns
        self._opening = None
        self._has_times = has_times
        self._checks_rate = checks_rate
        self._check = None
        self._arrival = None
        self._time_base = time_base if time_base is not None and time_base > 0 else None
        if rate is not None and 0 < rate <= MAX_RATE:
            usable = rate
        else:
            usable = DEFAULT_RATE
        self._period_ns = int(NS_PER_S / usable)
        self._anchor = None

    def arrived(self, pts: int | None, now_ns: int) -> None:
        """Note a frame that left the decoder at `now_ns`, also one that is discarded and so has no media time."""
        pts_ns = self._pts_ns(pts)
        if pts_ns is None or not self._has_times or not self._checks_rate:
            return
        if self._opening is None:
            self._opening = OpeningDelay(pts_ns, now_ns)
        else:
            self._opening.add(pts_ns, now_ns)

    def media_ns(self, pts: int | None, now_ns: int) -> int:
        """Return the media time of the next frame, which left the decoder at `now_ns`; always increasing."""
        pts_ns = self._pts_ns(pts)
        by_clock_ns = self._by_clock(now_ns)
        media_ns = by_clock_ns
        if not self._has_times:
            pass  # nothing is missing from a format without times
        elif self._arrival is not None:
            self.clamped_pts += 1
            media_ns = self._by_arrival(self._arrival, now_ns)
        elif pts_ns is None:
            self.made_pts += 1
            self._anchor = None
        elif self._anchor is None:
            media_ns = self._without_delay(by_clock_ns)
            self._begin_at(pts_ns, media_ns, now_ns)
        elif self._check is not None and self._check.is_off(pts_ns, now_ns):
            self.clamped_pts += 1
            self._arrival = self._origin
            media_ns = self._by_arrival(self._arrival, now_ns)
        else:
            by_pts_ns = self._anchor[1] + pts_ns - self._anchor[0]
            assert self._last is not None
            if self._last[0] < by_pts_ns <= by_clock_ns + EARLY_MAX_NS:
                media_ns = by_pts_ns
            else:
                self.clamped_pts += 1
                if pts_ns == self._last_pts_ns:
                    self._anchor = pts_ns, by_clock_ns  # a clock too coarse for its frames is no other clock
                else:
                    self._begin_at(pts_ns, by_clock_ns, now_ns)
        self._last_pts_ns = pts_ns
        self._last = media_ns, now_ns
        return media_ns

    def _pts_ns(self, pts: int | None) -> int | None:
        if pts is None or self._time_base is None:
            return None
        return int(pts * self._time_base * NS_PER_S)

    def _without_delay(self, by_clock_ns: int) -> int:
        """Return the media time of the first frame after an outage, which opening has delayed; otherwise that of the
        clock."""
        delay_ns = self._delay_ns
        self._delay_ns = 0
        if self._last is None:
            return by_clock_ns
        return max(by_clock_ns - delay_ns, min(self._last[0] + self._period_ns, by_clock_ns))

    def _begin_at(self, pts_ns: int, media_ns: int, now_ns: int) -> None:
        """Follow the PTS from a frame on."""
        self._anchor = pts_ns, media_ns
        self._origin = media_ns, now_ns
        if self._checks_rate:
            self._check = RateCheck(pts_ns, now_ns)
        else:
            self._check = None

    def _by_arrival(self, origin: tuple[int, int], now_ns: int) -> int:
        """Return the media time of a frame by what has passed since an earlier one, its media time and arrival; at half
        the speed while media time is ahead of that."""
        assert self._last is not None
        last_media_ns, last_now_ns = self._last
        slowest_ns = last_media_ns + max((now_ns - last_now_ns) // 2, 1)
        return max(origin[0] + now_ns - origin[1], slowest_ns)

    def _by_clock(self, now_ns: int) -> int:
        if self._last is None:
            return 0
        last_media_ns, last_now_ns = self._last
        elapsed_ns = now_ns - last_now_ns
        return last_media_ns + (elapsed_ns if elapsed_ns > 0 else self._period_ns)


class Backoff:
    """Waits between attempts to reopen a lost source: growing, and reset after a stable connection."""

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
    """Pacer of a source with bursts of frames (HLS: a segment at a time), by its media time.

    The first frame is due at once; a late frame delays all that follow, and a frame due after more than PAUSE_MAX_NS
    advances them.
    """

    def __init__(self) -> None:
        self._start_ns: int | None = None

    def due_ns(self, media_ns: int, now_ns: int) -> int:
        """Return the time at which a frame with this media time is due; `now_ns` if it is late."""
        if self._start_ns is None or not 0 <= self._start_ns + media_ns - now_ns <= PAUSE_MAX_NS:
            self._start_ns = now_ns - media_ns
        return self._start_ns + media_ns
