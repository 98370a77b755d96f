"""Credits and one slot: items that a sender may send, and items that are replaced."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.errors import TransportError
from stream.protocol.buffers import Mailbox, SharedFrameReader, SharedFrameWriter, SlotTable


def test_an_item_waits_until_a_credit_comes() -> None:
    box: Mailbox[str] = Mailbox()
    box.put("a")
    assert box.full
    assert not box.ready
    box.grant()
    assert box.ready
    assert box.take() == "a"
    assert not box.full


def test_a_credit_waits_until_an_item_comes() -> None:
    box: Mailbox[str] = Mailbox()
    box.grant(2)
    assert not box.ready
    for item in ("a", "b"):
        box.put(item)
        assert box.take() == item
    box.put("c")
    assert not box.ready


def test_a_newer_item_replaces_the_waiting_one_and_is_counted() -> None:
    box: Mailbox[str] = Mailbox()
    for item in ("a", "b", "c"):
        box.put(item)
    assert box.waiting == "c"
    box.grant()
    assert box.take() == "c"
    assert box.waiting is None
    assert box.replaced_count == 2


def test_required_items_are_merged_into_the_newer_one() -> None:
    box: Mailbox[tuple[int, str]] = Mailbox(lambda old, new: (new[0], old[1] + new[1]))
    for item in ((1, "a"), (2, "b"), (3, "c")):
        box.put(item)
    box.grant()
    assert box.take() == (3, "abc")


def test_nothing_can_be_taken_without_a_credit_or_from_an_empty_slot() -> None:
    box: Mailbox[str] = Mailbox()
    box.put("a")
    with pytest.raises(LookupError, match="no credit"):
        box.take()
    box.grant(2)
    box.take()
    with pytest.raises(LookupError, match="slot is empty"):
        box.take()


@pytest.mark.parametrize("count", [0, -1])
def test_a_grant_is_at_least_one_credit(count: int) -> None:
    with pytest.raises(ValueError, match="at least one credit"):
        Mailbox().grant(count)


@given(st.lists(st.sampled_from(["put", "grant"]), max_size=60))
def test_every_item_is_taken_replaced_or_waiting_and_the_taken_ones_are_the_newest(steps: list[str]) -> None:
    box: Mailbox[int] = Mailbox()
    count, items, credits = 0, [], 0
    for step in steps:
        if step == "put":
            box.put(count)
            count += 1
        else:
            box.grant()
            credits += 1
        while box.ready:
            items.append(box.take())
            assert items[-1] == count - 1
    assert len(items) + box.replaced_count + box.full == count
    assert len(items) <= credits
    assert items == sorted(set(items))


def test_an_object_is_taken_once() -> None:
    slots: SlotTable[str] = SlotTable(2)
    number = slots.put("planes")
    assert number is not None
    assert len(slots) == 1
    assert slots.take(number) == "planes"
    assert len(slots) == 0
    with pytest.raises(TransportError, match=f"slot {number} holds nothing"):
        slots.take(number)


def test_a_full_table_takes_nothing() -> None:
    slots: SlotTable[str] = SlotTable(1)
    first = slots.put("a")
    assert first is not None
    assert slots.put("b") is None
    slots.take(first)
    assert slots.put("b") is not None


def test_a_full_table_takes_the_next_object_as_soon_as_a_slot_is_free() -> None:
    slots: SlotTable[str] = SlotTable(1)
    first = slots.put("a")
    assert first is not None
    waiting = threading.Thread(target=lambda: slots.put("b", timeout_s=10))
    waiting.start()
    slots.take(first)
    waiting.join(10)
    assert not waiting.is_alive()
    assert len(slots) == 1


def test_numbers_are_never_used_again_and_discarding_an_empty_slot_is_no_error() -> None:
    slots: SlotTable[str] = SlotTable(1)
    numbers = []
    for _ in range(5):
        number = slots.put("a")
        assert number is not None
        slots.discard(number)
        slots.discard(number)
        assert len(slots) == 0
        numbers.append(number)
    assert len(set(numbers)) == 5


def test_a_table_may_be_bounded_by_the_size_of_its_objects() -> None:
    slots: SlotTable[bytes] = SlotTable(10, len)
    first = slots.put(bytes(6))
    assert first is not None
    assert slots.put(bytes(5)) is None
    second = slots.put(bytes(4))
    assert second is not None
    assert slots.take(first) == bytes(6)
    assert slots.put(bytes(7)) is None
    slots.discard(second)
    assert slots.put(bytes(10)) is not None
    assert slots.put(b"x") is None


def test_a_table_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one object"):
        SlotTable(0)


def picture(height_px: int, width_px: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)


Shared = tuple[SharedFrameWriter, SharedFrameReader]


@pytest.fixture(params=["memfd", "unlinked file"])
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    if request.param == "unlinked file":
        monkeypatch.delattr(os, "memfd_create")
    with closing(SharedFrameWriter()) as writer, closing(SharedFrameReader(os.dup(writer.descriptor))) as reader:
        yield writer, reader


def test_written_frames_are_read_and_a_larger_frame_makes_room(shared: Shared) -> None:
    writer, reader = shared
    for height_px, width_px in ((32, 64), (96, 64), (64, 32)):
        image = picture(height_px, width_px)
        writer.write(image)
        np.testing.assert_array_equal(reader.read(height_px, width_px), image)


def test_rows_of_a_wider_picture_are_written_packed(shared: Shared) -> None:
    writer, reader = shared
    wide = picture(32, 128)
    writer.write(wide[:, 10:74])
    np.testing.assert_array_equal(reader.read(32, 64), wide[:, 10:74])


def test_the_reader_shares_the_memory_and_cannot_write(shared: Shared) -> None:
    writer, reader = shared
    writer.write(picture(32, 32, 0))
    view = reader.read(32, 32)
    writer.write(picture(32, 32, 1))
    np.testing.assert_array_equal(view, picture(32, 32, 1))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0


def test_a_frame_larger_than_what_was_written_is_refused(shared: Shared) -> None:
    writer, reader = shared
    writer.write(picture(32, 32))
    with pytest.raises(TransportError, match="holds 3072 bytes, a frame of 64x64 has 12288"):
        reader.read(64, 64)


def test_the_memory_has_no_name(shared: Shared) -> None:
    assert os.fstat(shared[0].descriptor).st_nlink == 0
