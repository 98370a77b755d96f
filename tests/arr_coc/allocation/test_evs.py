"""EVS: what changed since the frame that was shown before, within the budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator, suits_device
from arr_coc.allocation.attending import allocate
from arr_coc.allocation.evs import changed_tiles, clip_tiles, even_lattice, tile_change
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.group import GroupOptions
from arr_coc.allocation.strategies import AllocationHistory
from arr_coc.allocation.zones import ZoneOptions
from arr_coc.types import FramePlanes, FrameStamp
from arr_coc.video.picture_allocator import FrameAllocator
from tests.support.groups import nothing_near
from tests.support.video import PictureStream, scenery

ROWS, COLS = 6, 10
BUDGET = 12
OPTIONS = AllocatorOptions("evs", BUDGET)
FIRST = even_lattice((ROWS, COLS), BUDGET)


@pytest.fixture(autouse=True, scope="module")
def _nothing_near() -> Iterator[None]:
    with nothing_near():
        yield


def changed_picture(picture: np.ndarray, *tiles: tuple[int, int]) -> np.ndarray:
    """The picture with other contents of some tiles, the first of which differs most."""
    other = picture.copy()
    for number, (row, col) in enumerate(tiles):
        tile = other[32 * row : 32 * row + 32, 32 * col : 32 * col + 32]
        tile[...] = np.where(tile < 128, 255 - 10 * number - tile // 8, 10 * number + tile // 8)
    return other


def tiles_of(frame: FrameAllocation) -> np.ndarray:
    tiles = np.zeros((ROWS, COLS), bool)
    regions = frame.allocation.regions.numpy()
    assert not regions[:, 0].any()
    tiles[regions[:, 1], regions[:, 2]] = True
    return tiles


@pytest.mark.parametrize("shape", [(8, 8), (16, 16), (5, 7), (9, 16), (1, 9)])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.27, 0.5, 1.0])
def test_the_lattice_is_even_and_spends_all(shape: tuple[int, int], share: float) -> None:
    count = max(1, round(share * shape[0] * shape[1]))
    lattice = even_lattice(shape, count)
    assert lattice.sum() == count
    for axis in (0, 1):
        halves = np.array_split(lattice, 2, axis=axis)
        expected = [count * half.size / lattice.size for half in halves]
        assert all(abs(half.sum() - due) <= 0.15 * count + 1 for half, due in zip(halves, expected, strict=True))


def test_the_change_of_a_tile_is_its_mean_absolute_difference() -> None:
    before = scenery(5, 5)
    after = before.copy()
    after[40, 70] = 255 - after[40, 70]
    change = tile_change(before, after, 32)
    difference = np.abs(after.astype(int) - before)[32:64, 64:96]
    assert change[1, 2] == difference.mean() > 0
    assert np.count_nonzero(change) == 1


def test_tiles_that_changed_most_come_first_and_the_rest_covers_the_frame() -> None:
    change = np.zeros((ROWS, COLS))
    change[4, 7], change[0, 1], change[2, 2] = 3, 2, 1
    assert np.argwhere(changed_tiles(change, change.shape, 2)).tolist() == [[0, 1], [4, 7]]
    tiles = changed_tiles(change, change.shape, BUDGET)
    assert tiles.sum() == BUDGET
    assert tiles[change > 0].all()
    assert tiles[:3].any(axis=1).all(), "no row of the upper half is left out"
    assert tiles[3:].any(axis=1).sum() >= 2
    assert np.array_equal(changed_tiles(np.zeros_like(change), change.shape, BUDGET), FIRST)
    assert np.array_equal(changed_tiles(None, change.shape, BUDGET), FIRST)


def test_a_clip_shows_its_first_frame_whole_and_then_what_changed() -> None:
    changes = [np.zeros((5, 7)), np.zeros((5, 7))]
    changes[0][1, 2], changes[1][1, 2], changes[1][0, 0] = 9, 9, 8
    frames = clip_tiles(changes, (5, 7), 13)
    assert frames[0].all()
    assert sum(int(tiles.sum()) for tiles in frames) == 39
    assert frames[1][1, 2]
    assert frames[2][1, 2]
    assert frames[2][0, 0]


def test_every_frame_of_a_clip_shows_something() -> None:
    changes = [np.zeros((5, 7)), np.full((5, 7), 50.0)]
    for tokens in (24, 25):
        frames = clip_tiles(changes, (5, 7), tokens)
        assert sum(int(tiles.sum()) for tiles in frames) == 3 * tokens
        assert all(tiles.any() for tiles in frames)


def test_below_one_frame_each_frame_of_a_clip_has_its_own_budget() -> None:
    change = np.zeros((5, 7))
    change[1, 2] = 9
    frames = clip_tiles([change], (5, 7), 4)
    assert [int(tiles.sum()) for tiles in frames] == [4, 4]
    assert frames[1][1, 2]
    assert np.array_equal(frames[0], even_lattice((5, 7), 4))
    assert np.array_equal(clip_tiles([], (5, 7), 9)[0], even_lattice((5, 7), 9))


def test_a_stream_compares_with_the_frame_that_was_answered_about() -> None:
    stream, allocator, picture = PictureStream(), StreamAllocator(OPTIONS), scenery(ROWS, COLS)
    first = allocator.allocate(stream.show(picture))
    assert np.array_equal(tiles_of(first), FIRST)
    assert first.strategy == "evs"
    other = changed_picture(picture, (5, 9))
    assert np.array_equal(tiles_of(allocator.allocate(stream.show(other))), FIRST), "none was answered about yet"
    allocator.mark_answered()
    steps = [changed_picture(other, (1, 1)), changed_picture(other, (1, 1), (3, 4))]
    for step in steps:
        tiles = tiles_of(allocator.allocate(stream.show(step)))
        assert tiles.sum() == BUDGET
        assert tiles[1, 1]
    assert tiles[3, 4], "both of the two frames since the answer count"
    allocator.mark_answered()
    assert np.array_equal(tiles_of(allocator.allocate(stream.show(steps[-1]))), FIRST), "nothing changed since"
    tiles = tiles_of(allocator.allocate(stream.show(changed_picture(steps[-1], (0, 0)))))
    assert tiles[0, 0]


def test_a_check_of_a_watch_shows_a_frame_too() -> None:
    stream, allocator, picture = PictureStream(), StreamAllocator(OPTIONS), scenery(ROWS, COLS)
    allocator.allocate(stream.show(picture))
    allocator.mark_looked()
    assert tiles_of(allocator.allocate(stream.show(changed_picture(picture, (5, 9)))))[5, 9]


def test_a_small_budget_goes_to_the_tiles_that_changed_most() -> None:
    stream, picture = PictureStream(), scenery(ROWS, COLS)
    allocator = StreamAllocator(replace(OPTIONS, budget=2))
    allocator.allocate(stream.show(picture))
    allocator.mark_answered()
    faint = picture.copy()
    faint[:32] ^= 1  # by one of 255, in ten tiles
    tiles = tiles_of(allocator.allocate(stream.show(changed_picture(faint, (4, 4), (2, 8)))))
    assert np.argwhere(tiles).tolist() == [[2, 8], [4, 4]]


def test_a_cut_is_covered_evenly() -> None:
    stream, allocator, picture = PictureStream(), StreamAllocator(OPTIONS), scenery(ROWS, COLS)
    allocator.allocate(stream.show(picture))
    allocator.mark_answered()
    stream.cut()
    assert np.array_equal(tiles_of(allocator.allocate(stream.show(changed_picture(picture, (1, 1))))), FIRST)


def test_a_still_picture_is_not_chosen_again() -> None:
    stream, allocator, picture = PictureStream(), StreamAllocator(OPTIONS), scenery(ROWS, COLS)
    allocator.allocate(stream.show(picture))
    allocator.mark_answered()
    first = allocator.allocate(stream.show(picture))
    assert allocator.allocate(stream.show(picture)).allocation is first.allocation


def test_a_budget_of_all_tiles_shows_all() -> None:
    stream, allocator = PictureStream(), StreamAllocator(replace(OPTIONS, budget=ROWS * COLS))
    assert tiles_of(allocator.allocate(stream.show(scenery(ROWS, COLS)))).all()


def test_a_question_about_a_zone_gets_the_changed_tiles_within() -> None:
    left = ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))
    stream, picture = PictureStream(), scenery(ROWS, COLS)
    allocator = StreamAllocator(replace(OPTIONS, zones=ZoneOptions(focus=(left,))))
    allocator.allocate(stream.show(picture))
    allocator.mark_answered()
    tiles = tiles_of(allocator.allocate(stream.show(changed_picture(picture, (1, 1), (1, 8)))))
    assert tiles[1, 1]
    assert not tiles[:, 5:].any()


def test_pictures_of_one_prompt_are_compared_one_with_the_next() -> None:
    allocator, picture = FrameAllocator(OPTIONS), scenery(ROWS, COLS)
    tiles = []
    for number, frame in enumerate((picture, changed_picture(picture, (5, 9)), changed_picture(picture, (1, 1)))):
        stamp = FrameStamp(number, number * 40_000_000, 0)
        tiles.append(tiles_of(allocator.allocate(FramePlanes("rgb", (frame,)), stamp).allocation))
    allocator.close()
    assert np.array_equal(tiles[0], FIRST)
    assert tiles[1][5, 9]
    assert tiles[2][5, 9]
    assert tiles[2][1, 1]


def test_a_memory_holds_the_first_frame_and_what_changed_since() -> None:
    stream, picture = PictureStream(), scenery(ROWS, COLS)
    allocator = StreamAllocator(replace(OPTIONS, memory=GroupOptions(patch=True)))
    group = allocator.group
    assert group is not None
    view = stream.show(picture)
    packet = group.packet(view, allocator.allocate(view), None)
    assert len(packet.regions) == BUDGET
    allocator.mark_answered()
    view = stream.show(changed_picture(picture, (1, 1), (3, 4)))
    packet = group.packet(view, allocator.allocate(view), group.next_place)
    assert packet.regions[packet.regions[:, 0] == 0, 1:].tolist() == [[1, 1], [3, 4]]


def test_the_library_takes_a_map_of_change() -> None:
    change = torch.zeros(ROWS, COLS)
    change[2, 3] = 1
    relevance = np.zeros((ROWS, COLS), np.float32)
    assert allocate(relevance, 1, "evs", memory=AllocationHistory(change=change)).regions.tolist() == [[0, 2, 3]]
    assert allocate(relevance, BUDGET, "evs").tokens == BUDGET


def test_the_host_chooses_it() -> None:
    assert not suits_device(OPTIONS, "core13")
    assert suits_device(replace(OPTIONS, strategy="topk"), "core13")
