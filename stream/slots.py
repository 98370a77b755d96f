"""Objects that stay in this process while messages name them."""

from __future__ import annotations

import itertools
import threading
from typing import Generic, TypeVar

from stream.errors import TransportError

T = TypeVar("T")


class Slots(Generic[T]):
    """A bounded table of slot number → object, shared by threads."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a slot table holds at least one object, got {capacity}")
        self._capacity = capacity
        self._objects: dict[int, T] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, item: T, timeout_s: float = 0.0) -> int | None:
        """Keeps `item` and returns its number; None where no slot became free within the time limit."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._objects) < self._capacity, timeout_s):
                return None
            number = next(self._numbers)
            self._objects[number] = item
            return number

    def take(self, number: int) -> T:
        """Removes and returns the object. Raises TransportError where the slot holds none."""
        with self._changed:
            if number not in self._objects:
                raise TransportError(f"slot {number} holds nothing: it was never filled, or taken before")
            self._changed.notify()
            return self._objects.pop(number)

    def discard(self, number: int) -> None:
        """Drops the object, if the slot still holds one."""
        with self._changed:
            if self._objects.pop(number, None) is not None:
                self._changed.notify()
