"""Who holds which slot."""

from __future__ import annotations

import pytest

from stream.answer.batching.slots import ClientSlots


def test_the_lowest_slot_that_nobody_had_comes_first() -> None:
    slots = ClientSlots(3)
    assert [slots.hold(client) for client in (b"a", b"b", b"a")] == [0, 1, 0]
    slots.release(b"a")
    assert slots.hold(b"c") == 2
    assert slots.hold(b"d") == 0


def test_a_client_gets_the_slot_that_it_had() -> None:
    slots = ClientSlots(3)
    for client in (b"a", b"b"):
        slots.hold(client)
        slots.release(client)
    assert slots.hold(b"b") == 1
    assert (slots[b"b"], b"b" in slots, b"a" in slots) == (1, True, False)
    with pytest.raises(KeyError):
        _ = slots[b"a"]


def test_what_a_client_had_is_told_when_it_leaves() -> None:
    slots = ClientSlots(2)
    slots.hold(b"a")
    assert slots.drop(b"a") == [0]
    assert slots.drop(b"a") == []
    assert b"a" not in slots
    assert slots.hold(b"b") == 0
