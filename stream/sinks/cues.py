"""From answers to cues: when each caption is shown. Pure; `captions` writes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

OPEN_CUE_MS = 1000
"""How long a caption is shown while nobody knows yet when the next one comes, and that of a still picture."""

ROUNDING_MS = 0.001
"""How far below a whole millisecond a time may lie that means it: seconds are binary fractions."""


@dataclass(frozen=True, slots=True)
class Cue:
    """One caption, shown from `start_ms` until `end_ms` of media time."""

    start_ms: int
    end_ms: int
    text: str


class CueTrack:
    """Turns answers into cues that never overlap and never go back.

    A cue lasts until the next answer with another text; an empty answer ends it and shows nothing.
    """

    def __init__(self) -> None:
        self._open: Cue | None = None
        self._now_ms = 0

    @property
    def open(self) -> Cue | None:
        """The cue that is shown now; its end is not final."""
        return self._open

    def answer(self, at_s: float, text: str) -> Cue | None:
        """Shows `text` from `at_s` on. Returns the cue that this completes."""
        at_ms = self._advance(at_s)
        text = text.strip()
        if self._open is not None and self._open.text == text:
            return None
        done = self._complete(at_ms)
        self._open = Cue(at_ms, at_ms + OPEN_CUE_MS, text) if text else None
        return done

    def finish(self, end_s: float | None) -> None:
        """The picture ends then, and with it the open cue; without an end the cue stays for `OPEN_CUE_MS`."""
        if self._open is None:
            return
        start_ms = self._open.start_ms
        end_ms = start_ms if end_s is None else math.floor(end_s * 1000 + ROUNDING_MS)
        self._open = replace(self._open, end_ms=end_ms if end_ms > start_ms else start_ms + OPEN_CUE_MS)

    def _advance(self, to_s: float) -> int:
        self._now_ms = max(self._now_ms, round(to_s * 1000))
        return self._now_ms

    def _complete(self, at_ms: int) -> Cue | None:
        if self._open is None or at_ms <= self._open.start_ms:
            return None
        return replace(self._open, end_ms=at_ms)
