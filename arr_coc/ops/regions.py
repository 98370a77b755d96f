"""Regions on the tile grid: how many there are of a level, where they lie, and in which order they are told.

A region (L, r, c) covers tiles [r·2^L, (r+1)·2^L) × [c·2^L, (c+1)·2^L), cut off at the grid's edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from arr_coc.types import LEVELS

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", "torch.Tensor", npt.NDArray[Any])

ABSENT = -1
"""In a level map: a tile that no token shows."""


def level_shape(shape: tuple[int, int], level: int) -> tuple[int, int]:
    """Rows and columns of the grid of regions of one level over a tile grid of `shape`."""
    return -(-shape[0] >> level), -(-shape[1] >> level)


def level_count(shape: tuple[int, int], level: int) -> int:
    """How many regions of one level cover a tile grid of `shape`."""
    rows, cols = level_shape(shape, level)
    return rows * cols


def pool_sum(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Sums over 2×2 cells, the last row and column of odd sizes by themselves: [h, w] → [⌈h/2⌉, ⌈w/2⌉]."""
    rows = values[0::2].copy()
    rows[: values.shape[0] // 2] += values[1::2]
    cols = rows[:, 0::2].copy()
    cols[:, : values.shape[1] // 2] += rows[:, 1::2]
    return cols


def pool_max(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Largest of 2×2 cells: [h, w] → [⌈h/2⌉, ⌈w/2⌉]."""
    rows = values[0::2].copy()
    half = rows[: values.shape[0] // 2]
    np.maximum(half, values[1::2], out=half)
    cols = rows[:, 0::2].copy()
    half = cols[:, : values.shape[1] // 2]
    np.maximum(half, rows[:, 1::2], out=half)
    return cols


def spread(coarse: npt.NDArray[Any], level: int, shape: tuple[int, int]) -> npt.NDArray[Any]:
    """Each region's value given to all of its tiles: [⌈gh/2^L⌉, ⌈gw/2^L⌉] → [gh, gw]."""
    if level == 0:
        return coarse
    return coarse.repeat(1 << level, axis=0)[: shape[0]].repeat(1 << level, axis=1)[:, : shape[1]]


def tile_counts(regions: npt.NDArray[np.integer[Any]], shape: tuple[int, int]) -> npt.NDArray[np.int64]:
    """How many tiles of a grid of `shape` each of `regions` [K, 3] covers: int64 [K]."""
    level, place = regions[:, :1].astype(np.int64), regions[:, 1:].astype(np.int64)
    sides = np.minimum((place + 1) << level, shape) - (place << level)
    return sides.prod(axis=1)


def paint(
    regions: npt.NDArray[np.integer[Any]], values: npt.NDArray[Any], shape: tuple[int, int], empty: float
) -> npt.NDArray[Any]:
    """A map [gh, gw] of `values` [K], each on all tiles of its region; `empty` where no region lies."""
    painted = np.full(shape, empty, dtype=values.dtype)
    for level in range(LEVELS):
        mine = regions[:, 0] == level
        if not mine.any():
            continue
        coarse = np.full(level_shape(shape, level), empty, dtype=values.dtype)
        there = np.zeros(coarse.shape, dtype=bool)
        at = regions[mine, 1], regions[mine, 2]
        coarse[at] = values[mine]
        there[at] = True
        np.copyto(painted, spread(coarse, level, shape), where=spread(there, level, shape))
    return painted


def region_mean(regions: npt.NDArray[np.integer[Any]], values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The mean of `values` [gh, gw] over each region's tiles: float32 [K]."""
    means = np.empty(len(regions), dtype=np.float32)
    total, tiles = values, np.ones(values.shape, np.float32)
    for level in range(int(regions[:, 0].max(initial=0)) + 1):
        mine = regions[:, 0] == level
        at = regions[mine, 1], regions[mine, 2]
        means[mine] = total[at] / tiles[at]
        total, tiles = pool_sum(total), pool_sum(tiles)
    return means


def level_map(regions: npt.NDArray[np.integer[Any]], shape: tuple[int, int]) -> npt.NDArray[np.int8]:
    """Each tile's level, `ABSENT` where no region shows it: int8 [gh, gw]."""
    return paint(regions, regions[:, 0].astype(np.int8), shape, ABSENT)


def token_positions(regions: Array) -> Array:
    """Centre of each region in level-0 tiles: floats [..., K, 2] (row, col) from regions [..., K, 3].

    float32 from a tensor, float64 from an array of integers.
    """
    side_tiles = 2.0 ** regions[..., :1]
    return regions[..., 1:] * side_tiles + (side_tiles - 1) / 2
