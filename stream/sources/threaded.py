"""Sources read by a thread, and the pollable queue between that thread and the pipeline."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.media import SkippedItem, Source, SourceFrame, SourceInfo, SourceOutage, merge_metadata, never_stop
from stream.sources.fit import FrameFitter, FrameFormat
from stream.sources.timing import LiveTimeline

log = logging.getLogger(__name__)

ITEMS_MAX = 64
"""Limit of queued frames and outages together, for a consumer that has stopped."""

Item = SourceFrame | SourceOutage


class FrameQueue:
    """Bounded queue between one producer and one consumer; `fileno` is readable when `drain` has items to return.

    If the queue is full, `put` drops the oldest frame and counts it in `dropped`; the metadata of that frame (a
    discontinuity, losses) are merged into the next one. `put_wait` waits instead.
    """

    # The consumer is nearly always waiting; the default capacity covers a pause of its thread.
    def __init__(self, capacity: int = 4) -> None:
        self._capacity = capacity
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._closed = False
        self._error: Exception | None = None
        self._readable, self._wake = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._wake, False)
        self.dropped = 0

    def fileno(self) -> int:
        return self._readable

    def put(self, item: Item) -> None:
        """Add an item without waiting."""
        with self._changed:
            if self._closed:
                return
            self._items.append(item)
            if self._frames() > self._capacity or len(self._items) > ITEMS_MAX:
                self._drop_oldest()
            self._signal()

    def put_wait(self, item: Item, timeout_s: float) -> bool:
        """Add an item once there is room; return False if there was none within the time limit."""
        with self._changed:
            room = self._changed.wait_for(lambda: self._closed or self._frames() < self._capacity, timeout_s)
            if room and not self._closed:
                self._items.append(item)
                self._signal()
            return room

    def finish(self, error: Exception | None = None) -> None:
        """Mark the end of the items; `error`: the failure that ended them, if any."""
        with self._changed:
            self._ended = True
            self._error = error
            self._signal()

    def drain(self) -> list[Item] | None:
        """Remove and return all items, without waiting; None after the last. Raises the error that ended the items."""
        with self._changed:
            if self._closed:
                return None
            with contextlib.suppress(BlockingIOError):
                os.read(self._readable, 4096)
            items = list(self._items)
            self._items.clear()
            self._changed.notify_all()
            if self._ended:
                self._signal()
            if items or not self._ended:
                return items
            if self._error is not None:
                raise self._error
            return None

    def wait(self, timeout_s: float) -> bool:
        """Wait until `drain` has items or the end to return; return False after the time limit."""
        poll = select.poll()
        poll.register(self._readable, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def close(self) -> None:
        """Close the descriptors; later items are discarded. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._items.clear()
            self._changed.notify_all()
            os.close(self._readable)
            os.close(self._wake)

    def _frames(self) -> int:
        return sum(isinstance(item, SourceFrame) for item in self._items)

    def _drop_oldest(self) -> None:
        """Drop the oldest frame, or the oldest item if there are more than ITEMS_MAX."""
        index = next((at for at, item in enumerate(self._items) if isinstance(item, SourceFrame)), 0)
        if len(self._items) > ITEMS_MAX:
            index = 0
        old = self._items[index]
        del self._items[index]
        if not isinstance(old, SourceFrame):
            return
        self.dropped += 1
        for at, item in enumerate(self._items):
            if at >= index and isinstance(item, SourceFrame):
                self._items[at] = merge_metadata(old, item)
                return

    def _signal(self) -> None:
        if not self._closed:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b"\0")


WAIT_S = 0.05
"""Longest single wait for a frame between two checks of `should_stop`."""

CLOSE_S = 0.3
"""Longest wait of `close` for the reading thread, which usually ends with the next packet, and always by itself."""


class ReaderThread(threading.Thread, ABC):
    """Thread that reads one source into `queue` until `stop` is called.

    Frames are discarded until `begin` is called, so that the first one in the queue is fresh. `ready` is set once
    `info` describes the first frame, or `failure` holds the error that ended the reading.
    """

    def __init__(self, source_name: str, config: CaptureConfig, clock: Clock) -> None:
        super().__init__(name=f"read {source_name}", daemon=True)
        self.queue = FrameQueue()
        self.timeline = LiveTimeline()
        self.ready = threading.Event()
        self.info: SourceInfo | None = None
        self.failure: Exception | None = None
        self._source_name = source_name
        self._config = config
        self._clock = clock
        self._fitter = FrameFitter.of(config)
        self._begin_event = threading.Event()
        self._stopping = threading.Event()
        self._format: FrameFormat | None = None
        self._index = -1
        self._media_ns = 0
        self._seen_ns = clock.now_ns()
        self._outage: SourceOutage | None = None

    def begin(self) -> None:
        """Start putting frames into the queue."""
        self._begin_event.set()

    def stop(self) -> None:
        """End the thread as soon as its current wait returns."""
        self._stopping.set()
        self._begin_event.set()

    def run(self) -> None:
        try:
            self.read()
        except Exception as error:
            log.debug("reading %s failed", self._source_name, exc_info=True)
            self.failure = error
        self.queue.finish(self.failure)
        self.ready.set()

    @abstractmethod
    def read(self) -> None:
        """Read until the end, or until `stop` is called. Raises SourceError if the source is lost for good."""

    @abstractmethod
    def no_frame_error(self) -> SourceError:
        """Return the error of a source that gave no frame within `capture.open_timeout_s`."""

    def _begin_outage(self, reason: str) -> None:
        """Report a loss. Raises SourceError if `capture.reconnect` is off."""
        if not self._config.reconnect:
            raise SourceError(f"{self._source_name} is lost: {reason}; set capture.reconnect = true to wait for it")
        self._outage = SourceOutage(max(self._index, 0), self._media_ns, reason)
        self.queue.put(self._outage)

    def _end_outage(self, discontinuity: str | None, now_ns: int) -> str | None:
        """Report the end of an outage, if any; return the discontinuity of the frame that ends it."""
        if self._outage is None:
            return discontinuity
        self.queue.put(replace(self._outage, lasted_s=(now_ns - self._seen_ns) / NS_PER_S))
        self._outage = None
        return discontinuity or "reconnect"


class ThreadedSource(Source):
    """Source in real time, read by a thread through a bounded queue.

    The consumer waits on `fileno`, among other descriptors, and calls `poll`, or iterates over `frames`; neither
    blocks the reader.
    """

    def __init__(self, reader: ReaderThread, limit_s: float) -> None:
        """Start the reader and wait for the first frame.

        Raises the reader's error, or its `no_frame_error` after `limit_s`.
        """
        self._closed = False
        self._reader = reader
        reader.start()
        try:
            reader.ready.wait(limit_s)
            if reader.failure is not None:
                raise reader.failure
            if reader.info is None:
                raise reader.no_frame_error()
            self._info = reader.info
        except BaseException:
            self.close()
            raise

    def describe(self) -> SourceInfo:
        """Return the properties of the first frame."""
        return self._info

    def frames(self, should_stop: Callable[[], bool] = never_stop) -> Iterator[SourceFrame | SourceOutage]:
        """Yield frames and outages as they arrive, until `should_stop` returns True or `capture.max_frames`.

        Raises SourceError if the source is lost and `capture.reconnect` is off.
        """
        while not should_stop():
            items = self.poll()
            if items is None:
                return
            for item in items:
                yield item
                if should_stop():
                    return
            self._reader.queue.wait(WAIT_S)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` has items to return."""
        return self._reader.queue.fileno()

    def poll(self) -> list[SourceFrame | SourceOutage] | None:
        """Return the items since the last call, without waiting; None after the end. Raises as `frames`."""
        self._reader.begin()
        return self._reader.queue.drain()

    @property
    def dropped_frames(self) -> int:
        """Frames dropped because they were not consumed in time."""
        return self._reader.queue.dropped

    def repaired_pts(self) -> tuple[int, int]:
        """Return the numbers of made and of clamped PTS."""
        return self._reader.timeline.made_pts, self._reader.timeline.clamped_pts

    def close(self) -> None:
        """Release the source; its thread ends at once, or after FFmpeg's time limit."""
        if not self._closed:
            self._closed = True
            self._reader.stop()
            self._reader.join(CLOSE_S)
            self._reader.queue.close()


AHEAD = 2
"""Limit of frames decoded ahead of the consumer."""


class PrefetchSource(Source):
    """Source that reads another source ahead in a thread, so that its consumer can stop while the network is silent.

    One thread reads and closes the source; it waits when it is `AHEAD` frames ahead.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._queue = FrameQueue(AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="read ahead", daemon=True)

    def describe(self) -> SourceInfo:
        return self._source.describe()

    def frames(self, should_stop: Callable[[], bool] = never_stop) -> Iterator[SourceFrame | SourceOutage]:
        """Yield the frames of the source; to be called once. Raises the source's errors."""
        self._thread.start()
        while not should_stop():
            items = self._queue.drain()
            if items is None:
                return
            yield from items
            self._queue.wait(WAIT_S)

    def trailing_skipped(self) -> tuple[SkippedItem, ...]:
        return self._source.trailing_skipped()

    def repaired_pts(self) -> tuple[int, int]:
        return self._source.repaired_pts()

    def close(self) -> None:
        """End the thread, at once or after the network's time limit; the thread closes the source."""
        self._stop.set()
        if self._thread.ident is None:
            self._source.close()
        else:
            self._thread.join(CLOSE_S)
        self._queue.close()

    def _read(self) -> None:
        error: Exception | None = None
        try:
            with self._source:
                for item in self._source.frames(self._stop.is_set):
                    while not self._queue.put_wait(item, WAIT_S):
                        if self._stop.is_set():
                            return
                    if self._stop.is_set():
                        return
        except Exception as caught:
            error = caught
        finally:
            self._queue.finish(error)
