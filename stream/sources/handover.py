"""Frames from the thread that reads a source to the one that takes them, with a descriptor to wait on."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque

from stream.sources.base import SourceFrame, SourceOutage, merged

CAPACITY = 4
"""Frames that may wait. Whoever takes them is nearly always waiting; this covers a pause of its thread."""

ITEMS_MAX = 64
"""Frames and outages that may wait together: a bound for a taker that is gone."""

Item = SourceFrame | SourceOutage


class Handover:
    """A bounded queue between one giver and one taker; `fileno` is readable when `take` has something to say.

    `put` drops the oldest frame where there is no room, and counts it in `dropped`; what that frame had to tell (a
    discontinuity, what was skipped) goes over to the next one. `put_when_free` waits instead.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
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
        """Hands an item over; never waits."""
        with self._changed:
            if self._closed:
                return
            self._items.append(item)
            if self._frames() > self._capacity or len(self._items) > ITEMS_MAX:
                self._drop_oldest()
            self._signal()

    def put_when_free(self, item: Item, timeout_s: float) -> bool:
        """Hands an item over once there is room; whether there was some within the time limit."""
        with self._changed:
            room = self._changed.wait_for(lambda: self._closed or self._frames() < self._capacity, timeout_s)
            if room and not self._closed:
                self._items.append(item)
                self._signal()
            return room

    def finish(self, error: Exception | None = None) -> None:
        """Nothing more will come; `error` says why, where that is a failure."""
        with self._changed:
            self._ended, self._error = True, error
            self._signal()

    def take(self) -> list[Item] | None:
        """What has come since, without waiting; None after the last. Raises the error that ended it."""
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
        """Whether `take` has something to say within the time limit."""
        poll = select.poll()
        poll.register(self._readable, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def close(self) -> None:
        """Gives back the descriptors; what still comes is dropped. May be called twice."""
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
        """Drops the oldest frame, or the oldest item where hardly any is a frame."""
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
                self._items[at] = merged(old, item)
                return

    def _signal(self) -> None:
        if not self._closed:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b"\0")
