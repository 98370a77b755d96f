"""Slots: rooms that grow together, independent caches, and the memory that they need."""

from __future__ import annotations

import pytest
import torch

from arr_coc.errors import OptionError
from arr_coc.qwen.batching import slots
from arr_coc.qwen.batching.slots import check_slots, fitting_slots, slot_bytes
from arr_coc.qwen.cache import ROOM_TOKENS, CacheMark, SlotBlock
from tests.support.models import HEAD_DIM, tiny_qwen


def rows(value: float, tokens: int) -> torch.Tensor:
    return torch.full((1, 1, tokens, HEAD_DIM), value)


def test_slots_share_one_tensor_a_layer() -> None:
    block = SlotBlock(tiny_qwen(), 3)
    assert block.room == 0
    for slot, cache in enumerate(block.caches):
        for layer in range(3):
            cache.kv.update(rows(slot + 1, 2 + slot), rows(-slot - 1, 2 + slot), layer)
    assert [len(cache) for cache in block.caches] == [2, 3, 4]
    assert block.room == ROOM_TOKENS
    for layer in block.layers.values():
        assert layer.keys.shape == (3, 1, ROOM_TOKENS, HEAD_DIM)
        assert [float(layer.keys[slot, 0, 1, 0]) for slot in range(3)] == [1, 2, 3]
        assert [float(layer.values[slot, 0, 1, 0]) for slot in range(3)] == [-1, -2, -3]


def test_room_grows_for_all_slots_and_keeps_their_contents() -> None:
    block = SlotBlock(tiny_qwen(), 2)
    block.caches[0].kv.update(rows(5, 3), rows(6, 3), 0)
    block.caches[1].kv.update(rows(7, ROOM_TOKENS + 1), rows(8, ROOM_TOKENS + 1), 0)
    first = block.caches[0].kv.layers[0]
    assert first.keys.shape[-2] == 3
    assert (first.keys == 5).all()
    assert (first.values == 6).all()
    assert first.room_keys.data_ptr() == block.layers[0].keys.data_ptr()
    assert block.layers[0].room == 2 * ROOM_TOKENS
    assert (block.layers[0].keys[0, :, 3:] == 0).all()


def test_slots_get_memory_when_they_are_first_used() -> None:
    block = SlotBlock(tiny_qwen(), 6)
    for slot, allocated in enumerate((1, 2, 4, 4, 6, 6)):
        for layer in range(3):
            block.caches[slot].kv.update(rows(slot + 1, 2), rows(-slot - 1, 2), layer)
        assert block.allocated == allocated
    assert [float(layer.keys[slot, 0, 1, 0]) for layer in block.layers.values() for slot in range(6)] == [
        *range(1, 7)
    ] * 3


def test_slots_whose_memory_is_given_back_are_empty_and_can_be_used_again() -> None:
    block = SlotBlock(tiny_qwen(), 4)
    for slot, cache in enumerate(block.caches):
        for layer in range(3):
            cache.kv.update(rows(slot + 1, 2), rows(-slot - 1, 2), layer)
    assert not block.surplus(2)
    surplus = block.surplus(1)
    for slot in surplus:
        block.caches[slot].rewind([])
    block.free(surplus)
    assert block.allocated == 1
    assert [len(cache) for cache in block.caches] == [2, 0, 0, 0]
    assert (block.caches[0].kv.layers[2].keys == 1).all()
    block.caches[1].kv.update(rows(7, 3), rows(8, 3), 0)
    assert (block.layers[0].allocated, len(block.caches[1])) == (2, 3)
    assert (block.caches[0].kv.layers[0].keys == 1).all()


def test_the_number_of_slots_follows_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    qwen = tiny_qwen()
    a_slot = slot_bytes(qwen, 300)
    for free, fitting in ((0, 1), (7 * a_slot, 3), (100 * a_slot, 8)):
        monkeypatch.setattr(slots, "free_bytes", lambda device, free=free: free)
        assert fitting_slots(qwen, 300, 8) == fitting


def test_a_cache_that_is_reset_is_empty_and_zero_and_the_others_stay() -> None:
    block = SlotBlock(tiny_qwen(), 2)
    for cache in block.caches:
        cache.kv.update(rows(torch.nan, 4), rows(torch.nan, 4), 0)
        cache.reach([CacheMark((1,), 4, 4)])
    block.caches[0].reset()
    assert (len(block.caches[0]), block.caches[0].marks) == (0, [])
    assert (block.layers[0].keys[0] == 0).all()
    assert len(block.caches[1]) == 4


def test_more_slots_than_the_memory_holds_are_refused_with_the_number_that_fits() -> None:
    qwen = tiny_qwen()
    a_slot = 2 * 3 * HEAD_DIM * 2 * ROOM_TOKENS * 4
    check_slots(qwen, 4, 300, free=4 * a_slot)
    with pytest.raises(
        OptionError, match=r"5 slots of 300 tokens need 2\.0 MB, and 1\.6 MB are free on cpu; set answer"
    ):
        check_slots(qwen, 5, 300, free=4 * a_slot)
    with pytest.raises(OptionError, match=r"answer\.slots to 4 or less, or lower answer\.max_tokens"):
        check_slots(qwen, 5, 300, free=4 * a_slot)
