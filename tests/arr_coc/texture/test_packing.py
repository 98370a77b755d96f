"""Tiles side by side, and rectangles that cover them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_coc.texture.packing import AT_ONCE, TilePacker, cover


@pytest.mark.parametrize("channels", [3, 4])
def test_tiles_are_packed_in_the_order_asked_for(channels: int) -> None:
    rng = np.random.default_rng(0)
    level0 = rng.integers(0, 256, (9 * 32, 11 * 32, 3), dtype=np.uint8)
    tiles = np.argwhere(np.ones((9, 11), bool))[rng.permutation(99)]
    assert len(tiles) > AT_ONCE
    out = np.full((120, 32, 32, channels), 7, np.uint8)
    TilePacker().pack(level0, tiles, out)
    for packed, (row, col) in zip(out, tiles.tolist(), strict=False):
        np.testing.assert_array_equal(packed[..., :3], level0[32 * row : 32 * row + 32, 32 * col : 32 * col + 32])
    assert (out[: len(tiles), ..., 3:] == 255).all()
    assert (out[len(tiles) :] == 7).all()


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
