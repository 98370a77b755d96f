"""A clock that tests move."""

from __future__ import annotations


class FakeClock:
    """A clock that moves only when the test moves it."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, delta_ns: int) -> None:
        self._now_ns += delta_ns
