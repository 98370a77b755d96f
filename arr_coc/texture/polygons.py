"""Polygons over a picture: samples that they touch, and the share of each tile that they cover.

Points are (x, y) in shares of the picture's width and height. A polygon that crosses itself has its inside by the
even-odd rule.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.types import TILE_PX, TileGrid

Polygon = tuple[tuple[float, float], ...]
"""Corners (x, y) in shares of the picture; the last one is joined to the first."""

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]

TILE_SAMPLES = 16
"""Places at which a tile is looked at along each side, for the share of it that a polygon covers."""


def touched_samples(
    polygon: Polygon, shape: tuple[int, int], step: tuple[float, float], reach: tuple[float, float] = (0.0, 0.0)
) -> Flags:
    """Return the samples of a plane that a polygon touches, or comes near to: bool [rows, cols].

    A sample is touched if the polygon's border runs through it, or its centre lies inside.

    Args:
        polygon: Corners (x, y) in shares of the picture.
        shape: (rows, cols) of the plane.
        step: Size of a sample, (down, across), in shares of the picture: 1 / height and 1 / width, or twice that for
            chroma of 4:2:0.
        reach: Distance that still counts, (down, across), in samples.
    """
    rows, cols = shape
    x = np.array([point[0] for point in polygon], np.float64) / step[1]
    y = np.array([point[1] for point in polygon], np.float64) / step[0]
    interior = inside_polygon(x, y, np.arange(rows) + 0.5, np.arange(cols) + 0.5)
    flags = interior | _crossed(x, y, shape)
    for axis, distance in enumerate(reach):
        samples = math.ceil(distance)
        if samples:
            count = flags.shape[axis]
            sums = np.cumsum(np.insert(flags, 0, False, axis=axis), axis=axis, dtype=np.int32)
            first = (np.arange(count) - samples).clip(0)
            last = (np.arange(count) + samples + 1).clip(max=count)
            flags = np.take(sums, last, axis=axis) > np.take(sums, first, axis=axis)
    return flags


def covered_shares(polygon: Polygon, grid: TileGrid) -> npt.NDArray[np.float32]:
    """Return the share of each tile that a polygon covers, float32 [rows, cols] in [0, 1].

    It is counted at 16×16 places. A tile that the picture's edge cuts off is looked at as padded: its edge repeats.
    """
    places = (np.arange(TILE_SAMPLES) + 0.5) * (TILE_PX / TILE_SAMPLES)
    down = (np.arange(grid.rows)[:, None] * TILE_PX + places).ravel().clip(max=grid.height_px - 0.5)
    across = (np.arange(grid.cols)[:, None] * TILE_PX + places).ravel().clip(max=grid.width_px - 0.5)
    x = np.array([point[0] for point in polygon], np.float64) * grid.width_px
    y = np.array([point[1] for point in polygon], np.float64) * grid.height_px
    interior = inside_polygon(x, y, down, across).reshape(grid.rows, TILE_SAMPLES, grid.cols, TILE_SAMPLES)
    return np.asarray(interior.mean(axis=(1, 3)), np.float32)


def inside_polygon(
    x: Floats,
    y: Floats,
    down: Floats,
    across: Floats,
) -> Flags:
    """Return the places that lie inside a polygon, by the even-odd rule: bool [rows, cols].

    Args:
        x: The corners' x, [n].
        y: The corners' y, [n].
        down: The places' y, [rows], ascending.
        across: The places' x, [cols], ascending.
    """
    turns = np.zeros((len(down), len(across) + 1), np.uint8)
    for x0, y0, x1, y1 in _edges(x, y):
        top = min(y0, y1)
        bottom = max(y0, y1)
        rows = np.arange(np.searchsorted(down, top), np.searchsorted(down, bottom))
        if len(rows):
            crossing = x0 + (down[rows] - y0) * ((x1 - x0) / (y1 - y0))
            turns[rows, np.searchsorted(across, crossing)] ^= 1
    return np.bitwise_xor.accumulate(turns, axis=1)[:, :-1].astype(bool)


def points_inside(polygon: Polygon, points: npt.NDArray[np.float64]) -> Flags:
    """Return which points [N, 2], (x, y) in shares of the picture, lie inside a polygon, as `inside_polygon`: bool
    [N]."""
    begins = np.array(polygon, np.float64)
    (x0, y0), (x1, y1), (x, y) = begins.T, np.roll(begins, -1, axis=0).T, points.T[..., None]
    crosses = (y0 <= y) != (y1 <= y)
    crossing = x0 + (y - y0) * ((x1 - x0) / np.where(y0 == y1, 1, y1 - y0))
    return np.asarray((crosses & (crossing <= x)).sum(axis=1) % 2 == 1)


def _crossed(x: Floats, y: Floats, shape: tuple[int, int]) -> Flags:
    """Return the unit cells [rows, cols] that a polygon's border runs through: bool."""
    rows, cols = shape
    begins = np.zeros((rows, cols + 1), np.int32)
    for x0, y0, x1, y1 in _edges(x, y):
        cells = np.arange(max(0, math.floor(min(y0, y1))), min(rows - 1, math.floor(max(y0, y1))) + 1)
        if not len(cells):
            continue
        if y0 == y1:
            ends = np.broadcast_to(np.array([[x0], [x1]]), (2, len(cells)))
        else:
            heights = np.stack([cells, cells + 1]).clip(min(y0, y1), max(y0, y1))
            ends = x0 + (heights - y0) * ((x1 - x0) / (y1 - y0))
        left = np.floor(ends.min(axis=0))
        right = np.floor(ends.max(axis=0))
        is_visible = (right >= 0) & (left < cols)
        np.add.at(begins, (cells[is_visible], left[is_visible].clip(0).astype(np.intp)), 1)
        np.add.at(begins, (cells[is_visible], right[is_visible].clip(max=cols - 1).astype(np.intp) + 1), -1)
    return np.asarray(begins.cumsum(axis=1)[:, :-1] > 0)


def _edges(x: Floats, y: Floats) -> list[tuple[float, float, float, float]]:
    return list(zip(x.tolist(), y.tolist(), np.roll(x, -1).tolist(), np.roll(y, -1).tolist(), strict=True))
