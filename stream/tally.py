"""Counts a run's events, for its summary."""

from __future__ import annotations

from collections.abc import Mapping

from arr_coc.types import NS_PER_S
from stream.events import Answer, Cut, Event, FrameReady, Looked, PictureChanged, Skipped, Summary


class Tally:
    """What has happened so far; `summary` may be asked for at any moment."""

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._frames = 0
        self._answers = 0
        self._cuts = 0
        self._discontinuities = 0
        self._skipped = 0
        self._tokens = self._tiles = 0
        self._flops = self._full_flops = 0
        self._dirty_share = 0.0
        self._first: FrameReady | None = None
        self._last: FrameReady | None = None
        self._found: bool | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, FrameReady):
            self._first = self._first or event
            self._last = event
            self._frames += 1
            self._tokens += event.tokens
            self._tiles += event.tiles
            self._dirty_share += event.dirty_share
        elif isinstance(event, Answer):
            self._answers += 1
            self._flops += event.flops
            self._full_flops += event.full_flops
        elif isinstance(event, Cut):
            self._cuts += 1
        elif isinstance(event, PictureChanged):
            self._discontinuities += 1
        elif isinstance(event, Skipped):
            self._skipped += event.count
        elif isinstance(event, Looked):
            self._found = self._found or event.holds == "yes"

    def summary(self, ended: str, error: str | None, dropped: Mapping[str, int], now_ns: int, backend: str) -> Summary:
        """`duration_s` is media time from the first frame to the last; `timing` holds the run's wall time in seconds
        and the frames a second between the first allocation and the last.
        """
        media_s, busy_s = 0.0, 0.0
        if self._first is not None and self._last is not None:
            media_s = self._last.pts_s - self._first.pts_s
            busy_s = (self._last.ready_ns - self._first.ready_ns) / NS_PER_S
        frames = max(1, self._frames)
        return Summary(
            frames=self._frames,
            duration_s=media_s,
            answers=self._answers,
            cuts=self._cuts,
            skipped=self._skipped,
            dropped={queue: count for queue, count in dropped.items() if count},
            mean_tokens=self._tokens / frames,
            mean_dirty_share=self._dirty_share / frames,
            ended=ended,
            backend=backend,
            discontinuities=self._discontinuities,
            error=error,
            mean_tiles=self._tiles / frames,
            work_ratio=self._full_flops / self._flops if self._flops else None,
            found=self._found,
            timing={
                "wall_s": (now_ns - self._start_ns) / NS_PER_S,
                "fps": (self._frames - 1) / busy_s if busy_s > 0 else 0.0,
            },
        )
