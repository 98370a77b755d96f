"""Playout delay: frames of a live source are let out at even intervals, whatever the work on each of them took."""

from __future__ import annotations

from collections import deque

from arr_coc.types import NS_PER_MS

LIMIT_NS = 20 * NS_PER_MS
"""Longest delay; with it a frame is ready within 25 ms of its capture, however even the others are."""

WINDOW_FRAMES = 300
"""Frames whose latencies the delay covers: ten seconds at 30 fps, so that a shot's cut is still known at the next."""

FALL_NS = NS_PER_MS // 20
"""Fall of the delay with each frame, where the latencies have become smaller: a leap would be jitter itself."""


class PlayoutDelay:
    """Delay from a frame's capture to its release, adapted to the largest latency of the newest frames.

    A frame that took less is held until then, one that took longer goes at once and raises the delay for those that
    follow. (Ramjee et al., Adaptive playout mechanisms for packetized audio applications in wide-area networks, 1994.)
    """

    def __init__(self) -> None:
        self._latencies_ns: deque[int] = deque(maxlen=WINDOW_FRAMES)
        self._delay_ns = 0
        self._captured_ns: int | None = None

    def release_ns(self, capture_ns: int, done_ns: int) -> int:
        """Return the time at which to let out a frame that was captured and worked on until then: not before
        `done_ns`."""
        gap_ns = 0 if self._captured_ns is None else capture_ns - self._captured_ns
        self._captured_ns = capture_ns
        self._latencies_ns.append(min(done_ns - capture_ns, LIMIT_NS))
        self._delay_ns = max(*self._latencies_ns, self._delay_ns - FALL_NS)
        # longest delay as a share of the time since the frame before: the rest is for the work on the next one, and
        # frames that come in a burst are hardly delayed
        limit_ns = min(self._delay_ns, round(0.6 * gap_ns))
        return max(done_ns, capture_ns + limit_ns)
