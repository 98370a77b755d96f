"""Cache of incremental encoding: slots of regions, and refresh of unchanged regions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.errors import OptionError, ShapeError
from arr_coc.qwen.options import IncrementalOptions
from arr_coc.qwen.vision_cache import (
    RegionSlotTable,
    SlotAssignment,
    full_refresh_due,
    neighbour_change,
    select_for_refresh,
)
from tests.support.device_tensors import DeviceTensors

NOTHING = np.zeros(8, bool)


def test_all_are_due_at_the_interval() -> None:
    options = IncrementalOptions(every_frames=3, drift_limit=None)
    assert [full_refresh_due(options, NOTHING, frames, None) for frames in (1, 2, 3)] == [False, False, True]
    assert not full_refresh_due(IncrementalOptions(every_frames=None), NOTHING, 10_000, None)


def test_all_are_due_after_drift_above_the_limit() -> None:
    options = IncrementalOptions(drift_limit=0.2)
    assert [full_refresh_due(options, NOTHING, 1, drift) for drift in (None, 0.2, 0.21)] == [False, False, True]
    assert not full_refresh_due(IncrementalOptions(drift_limit=None), NOTHING, 1, 9.0)


def test_all_are_due_if_most_are_stale() -> None:
    options = IncrementalOptions(drift_limit=None)
    assert not full_refresh_due(options, np.arange(8) < 6, 1, None)
    assert full_refresh_due(options, np.arange(8) < 7, 1, None)


def test_change_falls_with_the_distance_between_centres() -> None:
    regions = np.array([[0, 0, 0], [0, 0, 1], [0, 3, 0], [1, 0, 1]], np.int32)
    felt = neighbour_change(regions, np.array([[0, 0, 0], [0, 0, 2]], np.int32))
    nearest = 1 / (1 + 0.5**2 + 0.5**2)
    assert felt.tolist() == pytest.approx(
        [1 + 1 / 5, 1 / 2 + 1 / 2, 1 / 10 + 1 / 14, nearest + 1 / (1 + 2.5**2 + 0.5**2)]
    )
    assert neighbour_change(regions, regions[:0]).tolist() == [0] * 4


def chosen(unsettled: list[float], encoded: list[int], stale: list[bool], share: float) -> list[int]:
    flags = select_for_refresh(np.array(unsettled), np.array(encoded), np.array(stale), share)
    return np.flatnonzero(flags).tolist()


def test_the_most_unsettled_come_first_then_those_encoded_longest_ago() -> None:
    none_stale = [False] * 5
    assert chosen([0.1, 3, 0.2, 2, 0], [0] * 5, none_stale, 0.4) == [1, 3]
    assert chosen([0, 0, 0, 0, 0], [4, 2, 3, 1, 5], none_stale, 0.4) == [1, 3]
    assert chosen([0, 0, 0, 0, 0], [1] * 5, none_stale, 0.4) == [0, 1]


def test_stale_regions_are_not_counted_as_refreshed() -> None:
    stale = [True, True, False, True, False]
    assert chosen([9, 9, 0, 9, 1], [0] * 5, stale, 0.2) == [4]
    assert chosen([9, 9, 0, 9, 1], [0] * 5, stale, 1.0) == [2, 4]
    assert chosen([9, 9, 0, 9, 1], [0] * 5, stale, 0.0) == []


def test_every_region_is_refreshed_in_turn_in_a_still_scene() -> None:
    encoded = np.zeros(10, np.int64)
    for frame in range(1, 6):
        encoded[select_for_refresh(np.zeros(10), encoded, np.zeros(10, bool), 0.2)] = frame
    assert sorted(encoded) == sorted([1, 2, 3, 4, 5] * 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_frames": 0}, "every_frames must be at least 1, or none, got 0"),
        ({"share": 1.5}, r"share must be in \[0, 1\], got 1.5"),
        ({"share": float("nan")}, "share must be in"),
        ({"drift_limit": 0.0}, "drift_limit must be above 0, or none, got 0.0"),
        ({"memory_mb": -1.0}, "memory_mb must be 0 or more, got -1.0"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        IncrementalOptions(**options)


SHAPE = (3, 2, 2)


def regions_of(*names: tuple[int, int, int]) -> np.ndarray:
    return np.array(names, np.int32).reshape(-1, 3)


def tile(value: int) -> np.ndarray:
    return np.full(SHAPE, value, np.uint8)


def tiles(*values: int) -> np.ndarray:
    return np.stack([tile(value) for value in values])


def test_the_first_frame_fills_the_first_slots_in_order() -> None:
    table = RegionSlotTable(4, SHAPE)
    placed = table.place(regions_of((0, 0, 0), (1, 0, 1)), tiles(1, 2), 0)
    assert placed.slots.tolist() == [0, 1]
    assert placed.stale.all()
    assert not len(placed.source)
    assert table.region_count == 2


def test_only_other_pixels_are_stale() -> None:
    table = RegionSlotTable(4, SHAPE)
    regions = regions_of((0, 0, 0), (0, 0, 1))
    table.place(regions, tiles(1, 2), 0)
    changed = tiles(1, 2)
    changed[1, 2, 1, 1] += 1
    assert table.place(regions, changed, 1).stale.tolist() == [False, True]
    assert not table.place(regions, changed, 2).stale.any()


def test_pixels_on_a_device_are_compared_there() -> None:
    with DeviceTensors() as tensors:
        table, other = RegionSlotTable(4, SHAPE, tensors.place), RegionSlotTable(4, SHAPE)
        generator = np.random.default_rng(0)
        for frame in range(6):
            columns = generator.permutation(6)[:3]
            regions = regions_of(*((0, 0, int(column)) for column in columns))
            pixels = np.stack([tile(int(column) + (frame > 3)) for column in columns])
            with tensors.counted() as copies:
                placed = table.place(regions, torch.from_numpy(pixels).to(tensors.place), frame)
            expected = other.place(regions, pixels, frame)
            assert placed.stale.tolist() == expected.stale.tolist()
            assert placed.slots.tolist() == expected.slots.tolist()
            assert copies == ["to"], "whether each differs"


def test_a_region_of_another_level_is_another_region() -> None:
    table = RegionSlotTable(4, SHAPE)
    table.place(regions_of((0, 0, 0)), tiles(1), 0)
    assert table.place(regions_of((1, 0, 0)), tiles(1), 1).stale.all()


def test_a_region_that_returns_has_its_cached_keys() -> None:
    table = RegionSlotTable(3, SHAPE)
    first, second = regions_of((0, 0, 0), (0, 0, 1)), regions_of((0, 0, 1), (0, 5, 5))
    table.place(first, tiles(1, 2), 0)
    table.place(second, tiles(2, 3), 1)
    assert table.region_count == 3
    back = table.place(first, tiles(1, 2), 2)
    assert not back.stale.any()
    assert table.place(first, tiles(9, 2), 3).stale.tolist() == [True, False]


def test_of_the_regions_that_left_the_last_shown_stay() -> None:
    table = RegionSlotTable(3, SHAPE)
    for number in range(4):
        table.place(regions_of((0, 0, number)), tiles(number), number)
    assignment = table.place(regions_of((0, 0, 0), (0, 0, 1), (0, 0, 2)), tiles(0, 1, 2), 4)
    assert assignment.stale.tolist() == [True, False, False]


def test_a_full_table_drops_regions_that_left() -> None:
    table = RegionSlotTable(2, SHAPE)
    table.place(regions_of((0, 0, 0), (0, 0, 1)), tiles(1, 2), 0)
    table.place(regions_of((0, 1, 0), (0, 1, 1)), tiles(3, 4), 1)
    assert table.region_count == 2
    assert table.place(regions_of((0, 0, 0)), tiles(1), 2).stale.all()


def test_nearby_changes_also_count_for_regions_that_left() -> None:
    table = RegionSlotTable(3, SHAPE)
    table.place(regions_of((0, 0, 0), (0, 0, 4)), tiles(1, 2), 0)
    table.mark_encoded(np.arange(2), 0)
    placed = table.place(regions_of((0, 0, 4), (0, 0, 1)), tiles(2, 3), 1)
    table.unsettle(regions_of((0, 0, 1)))
    table.mark_encoded(placed.slots[1:], 1)
    back = table.place(regions_of((0, 0, 0), (0, 0, 1), (0, 0, 4)), tiles(1, 3, 2), 2)
    assert table.surrounding_change(back.slots).tolist() == pytest.approx([1 / 2, 0, 1 / 10])
    assert table.encoded_frames(back.slots).tolist() == [0, 1, 0]


def test_a_thousand_frames_agree_with_a_dictionary() -> None:
    """Contents move as each placement plans, and every region that is not stale must keep its contents."""
    random = np.random.default_rng(0)
    capacity = 14
    table = RegionSlotTable(capacity, SHAPE)
    contents = np.full(capacity, -1)
    world = {(level, row, col): 0 for level in range(2) for row in range(3) for col in range(4)}
    reference: dict[tuple[int, int, int], int] = {}
    reused = 0
    for frame in range(1000):
        for name in world:
            world[name] = int(random.integers(0, 256)) if random.random() < 0.1 else world[name]
        names = [list(world)[index] for index in sorted(random.permutation(len(world))[: random.integers(1, 12)])]
        placed = table.place(regions_of(*names), tiles(*(world[name] for name in names)), frame)
        check(placed, len(names), capacity)
        contents[placed.target] = contents[placed.source]
        for name, slot, stale in zip(names, placed.slots, placed.stale, strict=True):
            if stale:
                reference[name] = contents[slot] = frame * 1000 + int(slot)
            else:
                reused += 1
                assert contents[slot] == reference[name]
        assert len(names) <= table.region_count <= capacity
    assert reused > 2000


def check(placed: SlotAssignment, count: int, capacity: int) -> None:
    assert sorted(placed.slots) == list(range(count))
    assert len(set(placed.target)) == len(placed.target)
    assert len(set(placed.source)) == len(placed.source)
    assert all(0 <= slot < capacity for slot in [*placed.source, *placed.target])


@pytest.mark.parametrize("names", [[(0, 0, 1), (0, 0, 1)], [(0, -1, -1)], [(0, 1 << 24, 0)], [(14, 0, 0)]])
def test_invalid_and_duplicate_regions_are_refused(names: list[tuple[int, int, int]]) -> None:
    table = RegionSlotTable(4, SHAPE)
    table.place(regions_of((0, 0, 1)), tiles(1), 0)
    with pytest.raises(ShapeError, match="regions of the grid, each of them once"):
        table.place(regions_of(*names), tiles(*range(len(names))), 1)
    assert not table.place(regions_of((0, 0, 1)), tiles(1), 2).stale.any()
