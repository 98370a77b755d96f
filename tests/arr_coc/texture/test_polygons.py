"""Polygons on planes and tiles: what they touch, what they cover, by slow geometry beside."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.texture.polygons import Polygon, covered_shares, points_inside, touched_samples
from arr_coc.types import TileGrid

BOX: Polygon = ((0.25, 0.25), (0.5, 0.25), (0.5, 0.75), (0.25, 0.75))
TRIANGLE: Polygon = ((0.13, 0.07), (0.91, 0.33), (0.42, 0.88))
BOW: Polygon = ((0.1, 0.1), (0.9, 0.9), (0.9, 0.1), (0.1, 0.9))
STAR: Polygon = ((0.5, 0.0), (0.8, 1.0), (0.0, 0.4), (1.0, 0.4), (0.2, 1.0))
"""It encloses its middle twice."""


def is_inside(polygon: Polygon, x: float, y: float) -> bool:
    """Even-odd rule, one place at a time."""
    is_odd = False
    for (x0, y0), (x1, y1) in zip(polygon, (*polygon[1:], polygon[0]), strict=True):
        if (y0 > y) != (y1 > y) and x < x0 + (y - y0) * (x1 - x0) / (y1 - y0):
            is_odd = not is_odd
    return is_odd


@pytest.mark.parametrize("polygon", [BOX, TRIANGLE, BOW, STAR])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (48, 64)])
def test_every_sample_with_a_place_inside_is_touched(polygon: Polygon, shape: tuple[int, int]) -> None:
    rows, cols = shape
    touched = touched_samples(polygon, shape, (1 / rows, 1 / cols))
    spread = (np.arange(7) + 0.5) / 7
    for row in range(rows):
        for col in range(cols):
            places = [((col + x) / cols, (row + y) / rows) for x in spread for y in spread]
            if any(is_inside(polygon, x, y) for x, y in places):
                assert touched[row, col]


def test_only_samples_at_the_border_are_touched_beyond_the_inside() -> None:
    touched = touched_samples(BOX, (48, 64), (1 / 48, 1 / 64))
    expected = np.zeros((48, 64), bool)
    expected[12:37, 16:33] = True  # the lower and the right border run along the next samples
    assert (touched == expected).all()


def test_a_polygon_over_the_edge_of_the_picture_touches_its_last_samples() -> None:
    samples = touched_samples(((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)), (5, 3), (1 / 5, 1 / 3))
    assert samples.all()


def test_chroma_of_odd_pictures_is_touched_at_the_place_of_its_pixels() -> None:
    pixels = touched_samples(TRIANGLE, (45, 63), (1 / 45, 1 / 63))
    chroma = touched_samples(TRIANGLE, (23, 32), (2 / 45, 2 / 63))
    assert chroma.repeat(2, axis=0).repeat(2, axis=1)[:45, :63][pixels].all()


def test_reach_grows_by_whole_samples_in_both_directions() -> None:
    touched = touched_samples(BOX, (48, 64), (1 / 48, 1 / 64), (2, 1.5))
    expected = np.zeros((48, 64), bool)
    expected[10:39, 14:35] = True
    assert (touched == expected).all()
    assert touched_samples(BOX, (48, 64), (1 / 48, 1 / 64), (100, 100)).all()


def test_points_enclosed_twice_lie_outside() -> None:
    touched = touched_samples(STAR, (100, 100), (0.01, 0.01))
    assert not touched[50, 50]
    assert touched[15, 50]
    assert not touched_samples(BOW, (100, 100), (0.01, 0.01))[20, 50]


@pytest.mark.parametrize("polygon", [BOX, TRIANGLE, BOW, STAR])
def test_points_lie_inside_by_the_same_rule(polygon: Polygon) -> None:
    points = np.random.default_rng(0).random((500, 2))
    assert points_inside(polygon, points).tolist() == [is_inside(polygon, x, y) for x, y in points.tolist()]
    assert points_inside(polygon, points[:0]).tolist() == []


@pytest.mark.parametrize("polygon", [TRIANGLE, BOW, STAR])
def test_shares_of_tiles_are_areas(polygon: Polygon) -> None:
    grid = TileGrid.of(192, 256)
    fine = np.array([[is_inside(polygon, (x + 0.5) / 256, (y + 0.5) / 192) for x in range(256)] for y in range(192)])
    areas = fine.reshape(6, 32, 8, 32).mean(axis=(1, 3))
    assert np.abs(covered_shares(polygon, grid) - areas).max() < 0.06


def test_a_tile_that_the_picture_cuts_off_counts_as_padded() -> None:
    shares = covered_shares(((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)), TileGrid.of(40, 70))
    assert shares.shape == (2, 3)
    assert (shares == 1).all()
    assert covered_shares(BOX, TileGrid.of(64, 64)).tolist() == [[0.25, 0.0], [0.25, 0.0]]
