"""Number of answer servers, by how long cameras wait for their turns."""

from __future__ import annotations

from collections.abc import Sequence

HOLD_S = 15.0
"""Time for which the wait must be too long before another server is started: one long answer is no reason."""

CALM_S = 120.0
"""Time for which the wait must be short before a server is drained."""

SETTLE_S = 60.0
"""Time after a change: the p95 is that of the last minute, so it still tells of what was before."""


class ScalingPolicy:
    """Decides on one server more or fewer, between `least` and `most`. Pure: times are given."""

    def __init__(self, least: int, most: int, wait_s: float) -> None:
        self._least = least
        self._most = most
        self._wait_s = wait_s
        self._settled_s = 0.0
        self._long_since_s: float | None = None
        self._short_since_s: float | None = None

    def decide(self, servers: int, waits_s: Sequence[float], now_s: float) -> int:
        """Return 1 for another server, -1 for one fewer, 0 for no change.

        `servers` are those that there are, ready or not; `waits_s` has the p95 of the wait for a turn of each that is
        ready.
        """
        if servers < self._least:
            return 1
        if len(waits_s) < servers:  # one is starting: it is waited for
            self._settled_s, self._long_since_s, self._short_since_s = now_s + SETTLE_S, None, None
            return 0
        worst_s = max(waits_s, default=0.0)
        self._long_since_s = _since(self._long_since_s, now_s, holds=worst_s > self._wait_s)
        # share of the limit below which a wait is short: what a server fewer adds stays below the limit
        self._short_since_s = _since(self._short_since_s, now_s, holds=worst_s < self._wait_s * 0.25)
        if now_s < self._settled_s:
            return 0
        if servers < self._most and _lasted(self._long_since_s, now_s, HOLD_S):
            return 1
        if servers > self._least and _lasted(self._short_since_s, now_s, CALM_S):
            self._settled_s, self._short_since_s = now_s + SETTLE_S, None
            return -1
        return 0


def _since(before_s: float | None, now_s: float, *, holds: bool) -> float | None:
    if not holds:
        return None
    return now_s if before_s is None else before_s


def _lasted(since_s: float | None, now_s: float, limit_s: float) -> bool:
    return since_s is not None and now_s - since_s >= limit_s
