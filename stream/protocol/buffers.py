"""`Mailbox` (one slot, credits), `SlotTable` (objects by number), `SharedFrameWriter/Reader` (memfd).

The receiver grants a credit, and the sender then sends its newest item. An item that waits in the slot when a newer one
arrives is replaced and counted, so that no queue holds stale items.

The shared memory is a file without a name whose descriptor the answer process inherits, so nothing is left behind
however either process ends. Its one writer is the allocate stage; it belongs to the answer stage from the message that
announces a frame until the next credit.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from stream.errors import TransportError

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Mailbox of one slot and a count of credits.

    `merge(old, new)` returns the item for the slot when `new` replaces `old`, with the metadata of the old item that
    must not be lost (a discontinuity, a skipped packet).
    """

    def __init__(self, merge: Callable[[T, T], T] | None = None) -> None:
        self._merge = merge
        self._items: list[T] = []
        self._credits = 0
        self._replaced = 0

    @property
    def full(self) -> bool:
        """True if an item is waiting."""
        return bool(self._items)

    @property
    def ready(self) -> bool:
        """True if an item is waiting and the receiver has granted a credit."""
        return bool(self._items) and self._credits > 0

    @property
    def waiting(self) -> T | None:
        """The waiting item, which stays in the slot; None without one."""
        return self._items[0] if self._items else None

    @property
    def replaced_count(self) -> int:
        """Number of items that were replaced by a newer one before a credit."""
        return self._replaced

    def grant(self, count: int = 1) -> None:
        """Add `count` credits of the receiver. Raises ValueError below 1."""
        if count < 1:
            raise ValueError(f"a receiver grants at least one credit, got {count}")
        self._credits += count

    def put(self, item: T) -> None:
        """Put an item into the slot, in place of a waiting one."""
        if self._items:
            old = self._items.pop()
            self._replaced += 1
            item = self._merge(old, item) if self._merge else item
        self._items.append(item)

    def take(self) -> T:
        """Remove and return the waiting item, for one credit. Raises LookupError unless `ready`."""
        if not self.ready:
            raise LookupError("nothing to take: the slot is empty or the receiver has granted no credit")
        self._credits -= 1
        return self._items.pop()


class SlotTable(Generic[T]):
    """Bounded table of slot number → object, shared by threads.

    `capacity`: most objects, or the sum of `size_of` of each. `refused` counts those that found no room in time.
    """

    def __init__(self, capacity: int, size_of: Callable[[T], int] = lambda item: 1) -> None:
        if capacity < 1:
            raise ValueError(f"a slot table holds at least one object, got {capacity}")
        self._capacity = capacity
        self._size_of = size_of
        self._size = 0
        self.refused = 0
        self._objects: dict[int, T] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, item: T, timeout_s: float = 0.0) -> int | None:
        """Store `item` and return its number; None if no room became free within the time limit."""
        size = self._size_of(item)
        with self._changed:
            if not self._changed.wait_for(lambda: self._size + size <= self._capacity, timeout_s):
                self.refused += 1
                return None
            number = next(self._numbers)
            self._objects[number] = item
            self._size += size
            return number

    def take(self, number: int) -> T:
        """Remove and return the object. Raises TransportError if the slot is empty."""
        with self._changed:
            if number not in self._objects:
                raise TransportError(f"slot {number} holds nothing: it was never filled, or taken before")
            return self._remove(number)

    def discard(self, number: int) -> None:
        """Remove the object, if the slot still holds one."""
        with self._changed:
            if number in self._objects:
                self._remove(number)

    def _remove(self, number: int) -> T:
        item = self._objects.pop(number)
        self._size -= self._size_of(item)
        self._changed.notify_all()
        return item


Image = npt.NDArray[np.uint8]


class SharedFrameWriter:
    """Writer of one frame into shared memory, in the frame process; its parent may have made the memory."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            self._descriptor = nameless_file()
        else:
            self._descriptor = descriptor
        self._map: mmap.mmap | None = None

    @property
    def descriptor(self) -> int:
        """Descriptor that the answer process must inherit."""
        return self._descriptor

    def write(self, image: Image) -> None:
        """Copy `image` uint8 [H, W, 3] into the shared memory, which grows if necessary."""
        if self._map is None or len(self._map) < image.nbytes:
            os.ftruncate(self._descriptor, image.nbytes)
            self._map = mmap.mmap(self._descriptor, image.nbytes)
        np.copyto(np.frombuffer(self._map, np.uint8, image.nbytes).reshape(image.shape), image)

    def close(self) -> None:
        self._map = None
        os.close(self._descriptor)


class SharedFrameReader:
    """Reader of the frame in shared memory, in the answer process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None

    def read(self, height_px: int, width_px: int) -> Image:
        """Return the frame, uint8 [H, W, 3], read-only; valid until the answer stage's next credit.

        Raises TransportError if the shared memory is smaller than the frame.
        """
        size = height_px * width_px * 3
        if self._map is None or len(self._map) < size:
            memory_bytes = os.fstat(self._descriptor).st_size
            if memory_bytes < size:
                raise TransportError(
                    f"the snapshot holds {memory_bytes} bytes, a frame of {width_px}x{height_px} has {size}"
                )
            self._map = mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ)
        return np.frombuffer(self._map, np.uint8, size).reshape(height_px, width_px, 3)

    def close(self) -> None:
        self._map = None
        os.close(self._descriptor)


def nameless_file() -> int:
    """Return the descriptor of a new file in memory, which may be sealed, or of a temporary one without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("arr-coc-frame", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
