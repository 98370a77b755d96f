"""The sender's end of a queue: credits and one slot. Pure logic, no input or output.

The receiver says "one more" (a credit), the sender gives it the newest item that it has. An item that waits in
the slot when a newer one comes is replaced and counted, so that a queue never holds anything stale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """One slot and a count of credits.

    `merge(old, new)` makes the item that takes the slot when `new` replaces `old`; what must not be lost with the
    old item (a discontinuity, a note about a skipped packet) is carried over there.
    """

    def __init__(self, merge: Callable[[T, T], T] | None = None) -> None:
        self._merge = merge
        self._items: list[T] = []
        self._credits = 0
        self._replaced = 0

    @property
    def full(self) -> bool:
        """An item is waiting."""
        return bool(self._items)

    @property
    def ready(self) -> bool:
        """An item is waiting and the receiver wants one."""
        return bool(self._items) and self._credits > 0

    @property
    def waiting(self) -> T | None:
        """The item that waits, left where it is."""
        return self._items[0] if self._items else None

    @property
    def replaced(self) -> int:
        """How many items were replaced by a newer one before the receiver wanted them."""
        return self._replaced

    def grant(self, count: int = 1) -> None:
        """The receiver wants `count` items more. Raises ValueError below 1."""
        if count < 1:
            raise ValueError(f"a receiver grants at least one credit, got {count}")
        self._credits += count

    def put(self, item: T) -> None:
        """Lays an item into the slot, in place of the one that may be waiting there."""
        if self._items:
            old = self._items.pop()
            self._replaced += 1
            item = self._merge(old, item) if self._merge else item
        self._items.append(item)

    def take(self) -> T:
        """The waiting item, for one credit. Raises LookupError unless `ready`."""
        if not self.ready:
            raise LookupError("nothing to take: the slot is empty or the receiver has granted no credit")
        self._credits -= 1
        return self._items.pop()
