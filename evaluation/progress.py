"""How far a suite is, on stderr where that is a terminal."""

from __future__ import annotations

import sys
import time

from arr_coc.errors import counted
from evaluation.question import Question

EVERY_S = 1.0


class Progress:
    """Counts questions, and says so once a second."""

    def __init__(self, name: str) -> None:
        self._name, self._count, self._told_s = name, 0, 0.0

    def step(self, question: Question) -> None:
        """One more question has been answered in every way."""
        self._count += 1
        if time.monotonic() - self._told_s >= EVERY_S:
            self._say("\r")
            self._told_s = time.monotonic()

    def done(self) -> None:
        """The suite is done."""
        self._say("\n")

    def _say(self, end: str) -> None:
        if sys.stderr.isatty():
            print(f"{self._name}: {counted(self._count, 'question')}", end=end, file=sys.stderr, flush=True)
