"""Upload of dirty tiles: the choice of a way, and that every tile arrives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_coc.backends.gl.upload import SMALL_TILES, UploadPlan, Way, area, box_around, cheaper, plan_upload, tiles_of
from arr_coc.texture.packing import cover

SHAPE = (34, 60)


def copied(plan: UploadPlan, shape: tuple[int, int]) -> np.ndarray:
    """Number of uploads of each tile's texels: int [rows, cols]."""
    times = np.zeros(shape, int)
    for block in plan.blocks:
        row0, col0, row1, col1 = block.rectangle
        times[row0:row1, col0:col1] += 1
    np.add.at(times, tuple(plan.strip.T), 1)
    return times


def refreshed(plan: UploadPlan, shape: tuple[int, int]) -> np.ndarray:
    """Number of mipmap updates of each tile: int [rows, cols]."""
    times = np.zeros(shape, int)
    for tiles in [plan.strip, *(block.dirty for block in plan.blocks)]:
        np.add.at(times, tuple(tiles.T), 1)
    return times


@given(st.integers(1, 40), st.integers(1, 70), st.sampled_from([0.01, 0.1, 0.5, 0.95, 1]), st.integers(0, 1 << 16))
def test_every_dirty_tile_arrives_once_and_no_other_gets_mipmaps(rows: int, cols: int, share: float, seed: int) -> None:
    dirty = np.random.default_rng(seed).random((rows, cols)) < share
    dirty[-1, seed % cols] = True
    ways: list[Way | None] = [None, "parts", "box"]
    for way in ways:
        plan = plan_upload(cover(dirty), dirty.shape, way)
        assert plan.way == way or way is None
        np.testing.assert_array_equal(refreshed(plan, dirty.shape), dirty)
        times = copied(plan, dirty.shape)
        assert times.max() == 1
        assert times[dirty].all()
        if plan.way == "parts":
            np.testing.assert_array_equal(times, dirty)


def test_the_whole_is_everything_whatever_changed() -> None:
    plan = plan_upload(((0, 0, 1, 1),), SHAPE, "whole")
    assert (refreshed(plan, SHAPE) == 1).all()
    assert (copied(plan, SHAPE) == 1).all()


def test_a_block_is_copied_as_it_is_and_single_tiles_are_laid_side_by_side() -> None:
    plan = plan_upload(((0, 0, 11, 19), (20, 20, 21, 20 + SMALL_TILES - 1)), SHAPE)
    assert [block.rectangle for block in plan.blocks] == [(0, 0, 11, 19)]
    assert plan.strip.tolist() == [[20, 20 + index] for index in range(SMALL_TILES - 1)]


def test_scattered_tiles_go_alone_if_few_and_in_a_box_if_many() -> None:
    rng = np.random.default_rng(0)
    ways = [plan_upload(cover(rng.random(SHAPE) < share), SHAPE).way for share in (0.01, 0.05, 0.3, 0.5, 0.9)]
    assert ways == ["parts", "parts", "box", "box", "box"]


@pytest.mark.parametrize(("cost", "box"), [(0.0, False), (4.0, False), (4.9, False), (5.1, True)])
def test_the_box_is_taken_if_it_costs_less(cost: float, box: bool) -> None:
    """Two tiles of a box of 7: apart they cost 2 × (cost + 1), the box costs its 7 and cost."""
    rectangles = ((0, 0, 1, 1), (0, 6, 1, 7))
    assert cheaper(rectangles, cost) == (((0, 0, 1, 7),) if box else rectangles)


GRIDS = st.tuples(st.integers(1, 12), st.integers(1, 12))


@given(arrays(bool, GRIDS))
def test_their_tiles_are_those_that_were_covered(dirty: npt.NDArray[np.bool_]) -> None:
    rectangles = cover(dirty)
    assert tiles_of(rectangles).shape == (dirty.sum(), 2)
    assert sorted(tiles_of(rectangles).tolist()) == np.argwhere(dirty).tolist()
    assert sum(map(area, rectangles)) == dirty.sum()


def test_a_box_holds_all_and_no_more() -> None:
    assert box_around([(4, 1, 5, 3), (2, 2, 3, 9)]) == (2, 1, 5, 9)


def test_tiles_come_rectangle_by_rectangle_and_row_by_row() -> None:
    assert tiles_of([(1, 2, 3, 4)]).tolist() == [[1, 2], [1, 3], [2, 2], [2, 3]]
    assert tiles_of([(5, 0, 6, 2), (1, 2, 2, 3)]).tolist() == [[5, 0], [5, 1], [1, 2]]
