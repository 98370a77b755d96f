"""Rectangles that cover dirty tiles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_coc.ops.rectangles import cover

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
