"""A source that is read by a thread of its own and handed over frame by frame."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

from stream.sources.base import SkippedItem, SourceFrame, SourceInfo, SourceOutage, never
from stream.sources.handover import Handover
from stream.sources.live_time import LiveTimeline

WAIT_S = 0.05
"""Longest single wait for a frame, before `should_stop` is asked."""

CLOSE_S = 0.3
"""How long closing waits for the reading thread, which mostly ends with the next packet; it needs no help to end."""


class Reader(Protocol):
    """The thread that reads: `ready` is set once `info` or `failure` is; it hands over after `begin`, until `stop`."""

    handover: Handover
    timeline: LiveTimeline
    ready: threading.Event
    info: SourceInfo | None
    failure: Exception | None

    def start(self) -> None: ...

    def begin(self) -> None: ...

    def stop(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...


class ThreadedSource:
    """What comes in its own time, through a bounded queue.

    Whoever reads the source waits on `fileno` beside other things and calls `arrived`, or iterates over `frames`;
    neither is ever held up.
    """

    def __init__(self, reader: Reader, limit_s: float, nothing: Callable[[], Exception]) -> None:
        """Starts the reader and waits for the first frame. Raises what it failed of, or `nothing()` after `limit_s`."""
        self._closed = False
        self._reader = reader
        reader.start()
        try:
            reader.ready.wait(limit_s)
            if reader.failure is not None:
                raise reader.failure
            if reader.info is None:
                raise nothing()
            self._info = reader.info
        except BaseException:
            self.close()
            raise

    def describe(self) -> SourceInfo:
        """What the first frame shows."""
        return self._info

    def frames(self, should_stop: Callable[[], bool] = never) -> Iterator[SourceFrame | SourceOutage]:
        """Frames and outages as they come; ends when `should_stop` says so, or after `capture.max_frames`.

        Raises SourceError where the source is lost and `capture.reconnect` is off.
        """
        while not should_stop():
            items = self.arrived()
            if items is None:
                return
            for item in items:
                yield item
                if should_stop():
                    return
            self._reader.handover.wait(WAIT_S)

    def fileno(self) -> int:
        """A descriptor that is readable when `arrived` has something to give."""
        return self._reader.handover.fileno()

    def arrived(self) -> list[SourceFrame | SourceOutage] | None:
        """What has come since the last call, without waiting; None after the end. Raises as `frames`."""
        self._reader.begin()
        return self._reader.handover.take()

    @property
    def dropped(self) -> int:
        """Frames that nobody took in time."""
        return self._reader.handover.dropped

    def trailing_skipped(self) -> tuple[SkippedItem, ...]:
        """Nothing: what is live has no end to be missed."""
        return ()

    def repaired_pts(self) -> tuple[int, int]:
        """How many PTS were made, and how many clamped."""
        return self._reader.timeline.made_pts, self._reader.timeline.clamped_pts

    def close(self) -> None:
        """Lets go of the source; its thread ends at once, or when FFmpeg's time limit is over."""
        if not self._closed:
            self._closed = True
            self._reader.stop()
            self._reader.join(CLOSE_S)
            self._reader.handover.close()

    def __enter__(self) -> ThreadedSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
