"""The reader's view: levels, and the pixels of regions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.backends.registry import open_store
from arr_coc.errors import ShapeError, StoreError
from arr_coc.texture.store.base import TextureView
from arr_coc.texture.store.planes import PlaneFormat
from arr_coc.types import REGION_SHAPES, FramePlanes
from tests.support.stores import KINDS, Kind, open_kind, require
from tests.support.video import random_planes, stamp


@contextmanager
def view_of(height: int, width: int, kind: Kind = "reference") -> Iterator[TextureView]:
    planes = random_planes(np.random.default_rng(0), height, width)
    store = open_kind(PlaneFormat.of(planes), kind)
    store.update(planes, stamp(0))
    with store.lease() as view:
        yield view


def expected(view: TextureView, shape: int, row: int, col: int) -> npt.NDArray[np.uint8]:
    """Texel by texel, with clamped coordinates; of a wide or tall region the mean of several, halves up."""
    a, b = REGION_SHAPES[shape]
    level = min(a, b)
    down, across = 1 << (a - level), 1 << (b - level)
    texels = view.read(level).astype(int)
    rows = np.minimum(32 * down * row + np.arange(32 * down), texels.shape[0] - 1)
    cols = np.minimum(32 * across * col + np.arange(32 * across), texels.shape[1] - 1)
    boxes = texels[rows[:, None], cols[None, :]].reshape(32, down, 32, across, 3)
    return np.floor(boxes.mean(axis=(1, 3)) + 0.5).astype(np.uint8).transpose(2, 0, 1)


def regions_of(rows: int, cols: int) -> list[tuple[int, int, int]]:
    """Every region of every shape on a grid."""
    return [
        (shape, row, col)
        for shape, (a, b) in enumerate(REGION_SHAPES)
        for row in range(-(-rows >> a))
        for col in range(-(-cols >> b))
    ]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(st.integers(1, 200), st.integers(1, 300))
def test_gather_equals_clamped_lookup(kind: Kind, height: int, width: int) -> None:
    require(kind)
    with view_of(height, width, kind) as view:
        regions = np.array(regions_of(*view.grid.shape))
        np.random.default_rng(height * 1000 + width).shuffle(regions)
        pixels = view.gather(regions)
        assert pixels.shape == (len(regions), 3, 32, 32)
        assert pixels.dtype == np.uint8
        for region_pixels, region in zip(pixels, regions.tolist(), strict=True):
            np.testing.assert_array_equal(region_pixels, expected(view, *region))


@pytest.mark.parametrize("kind", KINDS)
def test_gather_of_nothing_and_of_other_integer_types(kind: Kind) -> None:
    require(kind)
    with view_of(64, 64, kind) as view:
        assert view.gather(np.zeros((0, 3), np.int32)).shape == (0, 3, 32, 32)
        pixels = view.gather(np.array([[1, 0, 0]], np.int8))
        np.testing.assert_array_equal(pixels[0], expected(view, 1, 0, 0))


@pytest.mark.parametrize(
    "region", [[0, 2, 0], [0, 0, 3], [1, 1, 0], [14, 0, 0], [6, 0, 2], [13, 1, 0], [-1, 0, 0], [0, -1, 0], [40, 0, 0]]
)
def test_a_region_outside_of_the_grid_is_named(region: list[int]) -> None:
    with view_of(64, 96) as view, pytest.raises(ShapeError, match=r"lies outside a grid of \(2, 3\) tiles"):
        view.gather(np.array([[0, 0, 0], region]))


@pytest.mark.parametrize("regions", [np.zeros((3,), int), np.zeros((2, 2), int), np.zeros((2, 3))])
def test_invalid_regions_are_refused(regions: npt.NDArray[np.int64]) -> None:
    with view_of(64, 64) as view, pytest.raises(ShapeError, match=r"integers \[K, 3\]"):
        view.gather(regions)


def test_levels_are_read_only_and_halve() -> None:
    with view_of(100, 200) as view:
        for level in range(6):
            texels = view.read(level)
            assert texels.shape == (128 >> level, 224 >> level, 3)
            with pytest.raises(ValueError, match="read-only"):
                texels[0, 0] = 0
        for level in (-1, 6):
            with pytest.raises(ShapeError, match="levels 0 to 5"):
                view.read(level)


def test_a_view_is_of_no_use_after_its_lease() -> None:
    with view_of(64, 64) as view:
        pass
    with pytest.raises(StoreError, match="lease has ended"):
        view.read(0)
    with pytest.raises(StoreError, match="lease has ended"):
        view.gather(np.zeros((1, 3), int))


def test_a_wide_region_keeps_strokes_that_run_along_it() -> None:
    """Lines of one pixel, black and white: a square of that width shows grey, a wide region the lines."""
    lines = np.zeros((64, 128), np.uint8)
    lines[::2] = 255
    store = open_store(PlaneFormat.of(planes := FramePlanes("gray", (lines,))), "cpu")
    store.update(planes, stamp(0))
    with store.lease() as view:
        wide, square = view.gather(np.array([[7, 1, 0], [2, 0, 0]]))
        np.testing.assert_array_equal(wide, np.broadcast_to(view.read(0)[32:, :32, 0], (3, 32, 32)))
        assert np.ptp(square[0, :16]) == 0
