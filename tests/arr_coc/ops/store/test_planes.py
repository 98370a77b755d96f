"""Tiles side by side."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_coc.errors import ShapeError
from arr_coc.ops.store.planes import AT_ONCE, PlaneFormat, TilePacker, cover
from arr_coc.types import Colour, FramePlanes
from tests.support.video import SUBSAMPLINGS, random_planes


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


@pytest.mark.parametrize("sampling", list(SUBSAMPLINGS))
@pytest.mark.parametrize("size", [(64, 96), (121, 161)])
def test_the_format_is_read_off_the_planes(sampling: str, size: tuple[int, int]) -> None:
    planes = random_planes(np.random.default_rng(0), *size, sampling=sampling, colour=Colour("bt709", True))
    fmt = PlaneFormat.of(planes)
    assert fmt == PlaneFormat("yuv", *size, SUBSAMPLINGS[sampling], Colour("bt709", True))
    assert fmt.grid.shape == (-(-size[0] // 32), -(-size[1] // 32))
    assert fmt.steps() == ((1, 1), SUBSAMPLINGS[sampling], SUBSAMPLINGS[sampling])


def test_gray_and_rgb_have_one_plane() -> None:
    rng = np.random.default_rng(1)
    assert PlaneFormat.of(random_planes(rng, 33, 40, layout="gray")).steps() == ((1, 1),)
    assert PlaneFormat.of(random_planes(rng, 33, 40, layout="rgb")).steps() == ((1, 1),)


Y, U = np.zeros((64, 64), np.uint8), np.zeros((32, 32), np.uint8)


@pytest.mark.parametrize(
    ("planes", "message"),
    [
        (FramePlanes("yuv", (Y, U)), "has 3 planes, got 2"),
        (FramePlanes("yuv", (Y, U, U[:20])), "not a 1, 2 or 4 fold subsampling"),
        (FramePlanes("yuv", (Y, U[:11], U[:11])), "not a 1, 2 or 4 fold subsampling"),
        (FramePlanes("gray", (Y.astype(np.uint16),)), "got uint16"),
        (FramePlanes("rgb", (Y,)), r"does not fit a plane of shape \(64, 64\)"),
        (FramePlanes("gray", (np.zeros((4, 4, 3), np.uint8),)), "does not fit a plane of shape"),
        (FramePlanes("gray", (np.zeros((0, 4), np.uint8),)), "does not fit a plane of shape"),
    ],
)
def test_planes_that_do_not_belong_together_are_refused(planes: FramePlanes, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        PlaneFormat.of(planes)


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
