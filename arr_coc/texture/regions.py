"""Region geometry: shapes, places, counts, painting.

A region (shape, r, c) covers tiles [r·2^a, (r+1)·2^a) × [c·2^b, (c+1)·2^b), cut off at the grid's edge, where
(a, b) = `REGION_SHAPES[shape]`. Shapes 0 to 5 are the squares of the mipmap levels, a = b = level.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import LEVELS, REGION_SHAPES

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", "torch.Tensor", npt.NDArray[Any])
Regions = npt.NDArray[np.integer[Any]]
Ints = npt.NDArray[np.int64]

ABSENT = -1
"""In a map of shapes: a tile that no token shows."""

UNKNOWN = len(REGION_SHAPES)
"""In a map of shapes that is carried along with motion: a tile that was not in view before."""

_SCALES = np.array(REGION_SHAPES)
REGION_AREAS = np.array([*_SCALES.sum(axis=1), 2 * LEVELS, 2 * LEVELS], np.float32)
"""Log2 of a region's area in tiles, by shape; the largest for `UNKNOWN` and `ABSENT` tiles (−1, the last)."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Texels that a region of one shape shows: 32×32 means over `down` × `across` texels of a mipmap level.

    The level is that of the shape's finer side, so a square shows its level's own texels. `down` and `across` are
    powers of two, and one of them is 1.
    """

    level: int
    down: int
    across: int

    @property
    def texels(self) -> int:
        """Texels in each mean."""
        return self.down * self.across


FOOTPRINTS = tuple(Footprint(min(a, b), 1 << max(a - b, 0), 1 << max(b - a, 0)) for a, b in REGION_SHAPES)
"""Footprints by shape."""


def region_scales(regions: Array) -> Array:
    """Log2 of rows and columns, in tiles, of regions int [..., 3]: int64 [..., 2]."""
    if isinstance(regions, np.ndarray):
        return _SCALES[regions[..., 0]]
    return _scales_on(regions.device)[regions[..., 0].long()]


@lru_cache(maxsize=8)
def _scales_on(device: torch.device) -> torch.Tensor:
    import torch

    with torch.inference_mode(False):  # kept, and used under autograd, too
        return torch.tensor(REGION_SHAPES, device=device)


def region_sides(regions: Array) -> Array:
    """Return the rows and columns, in tiles, of regions int [..., 3]: int64 [..., 2]."""
    scales = region_scales(regions)
    return 1 << scales


def first_tiles(regions: Array) -> Array:
    """Return the top left tile (row, col) of regions int [..., 3]: int64 [..., 2]."""
    places = regions[..., 1:]
    return places * region_sides(regions)


def tile_boxes(regions: Regions, shape: tuple[int, int]) -> Ints:
    """Return the tiles of regions [K, 3] on a grid of `shape`: int64 [K, 4] (top, left, bottom, right), half-open."""
    first = first_tiles(regions)
    return np.concatenate([first, np.minimum(first + region_sides(regions), shape)], axis=1)


def exist_on(regions: Regions, shape: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return for each region [K, 3] whether its shape exists and it begins within a grid of `shape`: bool [K]."""
    shapes, rows, cols = regions.astype(np.uint64).T  # what is below 0 becomes very large
    counts = -(-np.array(shape) >> _SCALES)[np.minimum(shapes, len(_SCALES) - 1).astype(np.intp)]
    return (shapes < len(_SCALES)) & (rows < counts[:, 0]) & (cols < counts[:, 1])


def shape_grid(shape: tuple[int, int], code: int) -> tuple[int, int]:
    """Return the rows and columns of the grid of regions of one shape over a tile grid of `shape`."""
    rows, cols = REGION_SHAPES[code]
    return -(-shape[0] >> rows), -(-shape[1] >> cols)


def level_shape(shape: tuple[int, int], level: int) -> tuple[int, int]:
    """Return the rows and columns of the grid of squares of one level over a tile grid of `shape`."""
    return -(-shape[0] >> level), -(-shape[1] >> level)


def level_count(shape: tuple[int, int], level: int) -> int:
    """Return the number of squares of one level that cover a tile grid of `shape`."""
    rows, cols = level_shape(shape, level)
    return rows * cols


def _paired(values: npt.NDArray[Any], axis: int, combine: np.ufunc) -> npt.NDArray[Any]:
    """Return each two neighbours along an axis combined; of an odd number, the last one by itself."""
    first = (slice(None),) * axis + (slice(0, None, 2),)
    second = (slice(None),) * axis + (slice(1, None, 2),)
    pairs = values[first].copy()
    half = pairs[(slice(None),) * axis + (slice(values.shape[axis] // 2),)]
    combine(half, values[second], out=half)
    return pairs


def shape_pool(values: npt.NDArray[Any], code: int, combine: np.ufunc = np.add) -> npt.NDArray[Any]:
    """Return the values of tiles combined over every region of one shape: [rows, cols] of `shape_grid`.

    Args:
        values: [gh, gw].
        code: Code of the shape.
        combine: np.add, or np.maximum.
    """
    for axis, halvings in enumerate(REGION_SHAPES[code]):
        for _ in range(halvings):
            values = _paired(values, axis, combine)
    return values


def spread(coarse: npt.NDArray[Any], code: int, shape: tuple[int, int]) -> npt.NDArray[Any]:
    """Return the value of each region of one shape, given to all of its tiles: [gh, gw].

    Args:
        coarse: A value for each region, [rows, cols] of `shape_grid`.
        code: Code of the shape.
        shape: (gh, gw) of the tile grid.
    """
    rows, cols = REGION_SHAPES[code]
    if rows:
        coarse = coarse.repeat(1 << rows, axis=0)[: shape[0]]
    if cols:
        return coarse.repeat(1 << cols, axis=1)[:, : shape[1]]
    return coarse


def tile_counts(regions: Regions, shape: tuple[int, int]) -> Ints:
    """Return the number of tiles of a grid of `shape` that each of `regions` [K, 3] covers: int64 [K]."""
    boxes = tile_boxes(regions, shape)
    return np.asarray((boxes[:, 2:] - boxes[:, :2]).prod(axis=1))


def paint(regions: Regions, values: npt.NDArray[Any], shape: tuple[int, int], empty: float) -> npt.NDArray[Any]:
    """Return a map of regions' values, each on all tiles of its region: [gh, gw]. Finer regions lie over coarser ones.

    Args:
        regions: [K, 3] (shape, row, col).
        values: [K].
        shape: (gh, gw) of the tile grid.
        empty: Value of tiles without a region.
    """
    output = np.full(shape, empty, dtype=values.dtype)
    for code in sorted(np.unique(regions[:, 0]).tolist(), key=lambda code: -sum(REGION_SHAPES[code])):
        members = regions[:, 0] == code
        coarse = np.full(shape_grid(shape, code), empty, dtype=values.dtype)
        coverage = np.zeros(coarse.shape, dtype=bool)
        at = regions[members, 1], regions[members, 2]
        coarse[at] = values[members]
        coverage[at] = True
        np.copyto(output, spread(coarse, code, shape), where=spread(coverage, code, shape))
    return output


def region_pool(regions: Regions, values: npt.NDArray[Any], combine: np.ufunc = np.add) -> npt.NDArray[Any]:
    """Return the values of tiles combined over each region's tiles: [K], of their dtype.

    Args:
        regions: [K, 3] (shape, row, col).
        values: [gh, gw].
        combine: np.add, or np.maximum.
    """
    pooled = np.empty(len(regions), values.dtype)
    for code in np.unique(regions[:, 0]).tolist():
        members = regions[:, 0] == code
        pooled[members] = shape_pool(values, code, combine)[regions[members, 1], regions[members, 2]]
    return pooled


def region_mean(regions: Regions, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the mean of `values` [gh, gw] over each region's tiles: float32 [K]."""
    tiles = tile_counts(regions, (values.shape[0], values.shape[1]))
    return np.asarray(region_pool(regions, values) / tiles, np.float32)


def shape_map(regions: Regions, shape: tuple[int, int]) -> npt.NDArray[np.int8]:
    """Return the shape (its code) of the region that shows each tile, `ABSENT` if none does: int8 [gh, gw]."""
    return paint(regions, regions[:, 0].astype(np.int8), shape, ABSENT)


def overview_regions(shape: tuple[int, int], tokens: int) -> npt.NDArray[np.int64]:
    """Return the cover of a tile grid by one level, the finest that takes at most `tokens` regions: int64 [K, 3].

    In token order; none, [0, 3], if even the coarsest level takes more.
    """
    level = next((level for level in range(LEVELS) if level_count(shape, level) <= tokens), None)
    if level is None:
        return np.zeros((0, 3), np.int64)
    rows, cols = level_shape(shape, level)
    row, col = np.divmod(np.arange(rows * cols), cols)
    return np.stack([np.full_like(row, level), row, col], axis=1).astype(np.int64)


def smooth_map(values: npt.NDArray[np.float32], level: int, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return the map [gh, gw] of values of the regions that cover a tile grid by one level.

    Bilinear between the regions' middles, so that what lies at a region's edge has a share of its neighbour's value.

    Args:
        values: float32 [K], in token order.
        level: Level of the regions.
        shape: (gh, gw) of the tile grid.
    """
    rows, cols = shape_grid(shape, level)
    coarse = np.ascontiguousarray(values, np.float32).reshape(rows, cols)
    down, across = (1 << scale for scale in REGION_SHAPES[level])
    fine = cv2.resize(coarse, (cols * across, rows * down), interpolation=cv2.INTER_LINEAR)
    return np.ascontiguousarray(fine[: shape[0], : shape[1]])


def token_positions(regions: Array) -> Array:
    """Centre of each region in level-0 tiles: floats [..., K, 2] (row, col) from regions [..., K, 3].

    float32 from a tensor, float64 from an array of integers.
    """
    sides = region_sides(regions)
    return regions[..., 1:] * sides + (sides - 1) / 2
