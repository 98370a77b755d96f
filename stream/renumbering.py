"""Makes the events of one frame process after another look like one run: numbers go on, and so does time."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from arr_coc.types import NS_PER_S
from stream.events import Event, FrameReady

_FRAMES = ("frame_index", "by_frame_index")
_TIMES = ("pts_s", "start_s", "end_s", "by_pts_s")
_ANSWERS = ("answer",)


class EventRebaser:
    """Adds to the numbers and times of a frame process what those before it came to. Pure.

    A live source counts time from the moment at which it was opened, so the time that was lost is added as well; a file
    is opened again where it would be by now, and keeps its own times.
    """

    def __init__(self, live: bool = True) -> None:
        self.live = live
        self._frames = self._answers = 0
        self._next_frame = self._next_answer = 0
        self._shift_s = 0.0
        self._last: FrameReady | None = None
        self._again = False

    @property
    def frames_before(self) -> int:
        """How many frames there were before the present frame process."""
        return self._frames

    def apply(self, event: Event) -> Event:
        """The event as the whole run counts."""
        if isinstance(event, FrameReady):
            if self._again and self.live and self._last is not None:
                gone_s = (event.capture_ns - self._last.capture_ns) / NS_PER_S
                self._shift_s = self._last.pts_s + gone_s - event.pts_s
            self._again = False
        changed: dict[str, Any] = {}
        for names, shift in ((_FRAMES, self._frames), (_TIMES, self._shift_s), (_ANSWERS, self._answers)):
            changed |= {name: value + shift for name in names if (value := getattr(event, name, None)) is not None}
        event = replace(event, **changed) if changed else event
        if isinstance(event, FrameReady):
            self._next_frame, self._last = event.frame_index + 1, event
        answer: int | None = getattr(event, "answer", None)
        if answer is not None:
            self._next_answer = max(self._next_answer, answer + 1)
        return event

    def next_epoch(self, now_ns: int) -> float | None:
        """Another frame process begins: the media time that a file is at by now; None for the first one."""
        if self._last is None:
            return None
        self._frames, self._answers, self._again = self._next_frame, self._next_answer, True
        return self._last.pts_s + max(0, now_ns - self._last.capture_ns) / NS_PER_S
