"""Playout delay: frames of a live source are released at even intervals, whatever time each of them took."""

from __future__ import annotations

from collections import deque

from arr_coc.types import NS_PER_MS

LIMIT_NS = 20 * NS_PER_MS
"""Longest delay; with it a frame is ready within 25 ms of its capture."""

WINDOW_FRAMES = 300
"""Frames whose latencies the delay covers: ten seconds at 30 fps, so that the latency of one cut is kept until the
next."""

FALL_NS = NS_PER_MS // 20
"""Decrease of the delay per frame after the latencies have become smaller: a sudden drop would itself be jitter."""


class PlayoutDelay:
    """Delay from a frame's capture to its release, adapted to the largest latency of the newest frames.

    A faster frame is held until then; a slower one is released at once and raises the delay for the following frames.
    (Ramjee et al., Adaptive playout mechanisms for packetized audio applications in wide-area networks, 1994.)
    """

    def __init__(self) -> None:
        self._latencies_ns: deque[int] = deque(maxlen=WINDOW_FRAMES)
        self._delay_ns = 0
        self._captured_ns: int | None = None

    def release_ns(self, capture_ns: int, done_ns: int) -> int:
        """Return the release time of a frame captured at `capture_ns` and finished at `done_ns`; never earlier."""
        if self._captured_ns is None:
            gap_ns = 0
        else:
            gap_ns = capture_ns - self._captured_ns
        self._captured_ns = capture_ns
        self._latencies_ns.append(min(done_ns - capture_ns, LIMIT_NS))
        self._delay_ns = max(*self._latencies_ns, self._delay_ns - FALL_NS)
        # limit of the delay as a share of the time since the frame before: the rest is for the work on the next frame,
        # and frames in a burst are hardly delayed
        limit_ns = min(self._delay_ns, round(0.6 * gap_ns))
        return max(done_ns, capture_ns + limit_ns)
