"""The table of objects that messages name."""

from __future__ import annotations

import threading

import pytest

from stream.errors import TransportError
from stream.slots import Slots


def test_an_object_is_taken_once() -> None:
    slots: Slots[str] = Slots(2)
    number = slots.put("planes")
    assert number is not None
    assert len(slots) == 1
    assert slots.take(number) == "planes"
    assert len(slots) == 0
    with pytest.raises(TransportError, match=f"slot {number} holds nothing"):
        slots.take(number)


def test_a_full_table_takes_nothing() -> None:
    slots: Slots[str] = Slots(1)
    first = slots.put("a")
    assert first is not None
    assert slots.put("b") is None
    slots.take(first)
    assert slots.put("b") is not None


def test_a_full_table_takes_the_next_object_as_soon_as_a_slot_is_free() -> None:
    slots: Slots[str] = Slots(1)
    first = slots.put("a")
    assert first is not None
    waiting = threading.Thread(target=lambda: slots.put("b", timeout_s=10))
    waiting.start()
    slots.take(first)
    waiting.join(10)
    assert not waiting.is_alive()
    assert len(slots) == 1


def test_discarding_a_slot_that_is_empty_is_no_mistake() -> None:
    slots: Slots[str] = Slots(1)
    number = slots.put("a")
    assert number is not None
    slots.discard(number)
    slots.discard(number)
    assert len(slots) == 0


def test_numbers_are_never_used_again() -> None:
    slots: Slots[str] = Slots(1)
    numbers = []
    for _ in range(5):
        number = slots.put("a")
        assert number is not None
        slots.take(number)
        numbers.append(number)
    assert len(set(numbers)) == 5


def test_a_table_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one object"):
        Slots(0)
