"""How long somebody who is awaited has said nothing."""

from __future__ import annotations

from arr_coc.types import NS_PER_S
from stream.clock import Clock

LEAP_NS = 1 * NS_PER_S
"""The most that counts between two looks: a run that was suspended has not been kept waiting."""


class Patience:
    """Counts silence from look to look. Belongs to the thread that waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_ns = clock.now_ns()
        self._silent_ns = 0

    @property
    def silence_s(self) -> float:
        return self._silent_ns / NS_PER_S

    def look(self, *, waiting: bool, heard: bool) -> None:
        """Tells how things stand: whether anything is awaited, and whether anything has come since the last look."""
        now_ns = self._clock.now_ns()
        if heard or not waiting:
            self._silent_ns = 0
        else:
            self._silent_ns += min(now_ns - self._looked_ns, LEAP_NS)
        self._looked_ns = now_ns
