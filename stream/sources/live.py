"""Live sources: cameras and streams from a network, brought back when they are lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType

import av

from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import ConfigError
from stream.sources.base import SkippedItem, SourceFrame, SourceInfo, SourceOutage, never
from stream.sources.connection import Target, cannot, opened_within
from stream.sources.reconnect import LiveReader

WAIT_S = 0.05
"""Longest single wait for a frame, before `should_stop` is asked."""

CLOSE_S = 0.3
"""How long closing waits for the reading thread, which mostly ends with the next packet; it needs no help to end."""


class LiveSource:
    """A source that never ends by itself, and comes in its own time.

    A thread (`LiveReader`) opens, reads and decodes, because FFmpeg may block; it stamps each frame as it leaves the
    decoder and hands it over through a bounded queue that drops its oldest frame, counted, when nobody takes them.
    Whoever reads the source waits on `fileno` beside other things and calls `arrived`, or iterates over `frames`;
    neither is ever held up. A loss is told as a `SourceOutage`, and the source is tried again until it is back; its
    frames go on counting, and media time goes on by the time that has passed.
    """

    def __init__(
        self,
        target: Target,
        config: CaptureConfig,
        clock: Clock,
        container: av.container.InputContainer | None = None,
        took_s: float = 0.0,
    ) -> None:
        """Opens the target, unless that was done before, in `took_s`, and waits for its first picture.

        Raises SourceError where there is none within `capture.open_timeout_s`, or ConfigError for a `capture.size`
        beyond measure or a `capture.start_s`.
        """
        if config.start_s:
            raise ConfigError(
                f"capture.start_s = {config.start_s:g} is for files, and {target.name} is live; leave it out"
            )
        if container is None:
            start_s = time.monotonic()
            container = opened_within(target, config.open_timeout_s)
            took_s = time.monotonic() - start_s
        self._closed = False
        self._reader = LiveReader(target, container, took_s, config, clock)
        self._reader.start()
        try:
            self._info = self._await_first(target, config.open_timeout_s, took_s)
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

    def __enter__(self) -> LiveSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _await_first(self, target: Target, limit_s: float, took_s: float) -> SourceInfo:
        self._reader.ready.wait(max(limit_s - took_s, 0))
        if self._reader.failure is not None:
            raise self._reader.failure
        if self._reader.info is None:
            raise cannot(target.name, target.too_slow(limit_s))
        return self._reader.info
