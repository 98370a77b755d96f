"""Rectangles that cover dirty tiles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_coc.ops.rectangles import area, box_around, cover, tiles_of

GRIDS = st.tuples(st.integers(1, 12), st.integers(1, 12))


@given(arrays(bool, GRIDS))
def test_rectangles_are_disjoint_and_cover_exactly_the_dirty_tiles(dirty: npt.NDArray[np.bool_]) -> None:
    painted = np.zeros(dirty.shape, int)
    for row0, col0, row1, col1 in cover(dirty):
        assert row0 < row1
        assert col0 < col1
        painted[row0:row1, col0:col1] += 1
    np.testing.assert_array_equal(painted, dirty)


def test_a_block_is_one_rectangle() -> None:
    dirty = np.zeros((6, 9), bool)
    dirty[1:4, 2:7] = True
    assert cover(dirty) == ((1, 2, 4, 7),)
    assert cover(np.ones((6, 9), bool)) == ((0, 0, 6, 9),)
    assert cover(np.zeros((6, 9), bool)) == ()


def test_runs_of_other_columns_are_not_joined() -> None:
    dirty = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1]], bool)
    assert set(cover(dirty)) == {(0, 0, 1, 2), (1, 0, 2, 3), (3, 0, 4, 3)}


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
