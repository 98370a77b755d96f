"""Lines of text from cheap per-tile data, and covers in which wide and tall regions compete for them.

Print has strokes across its line and, seen from afar, is a bar along it. So a tile is part of a line of text if
fine detail (level 1) changes along the line, and the structure tensor of a coarse level (3 or 4) says that what is left
there runs along it too (Bigün and Granlund, "Optimal orientation detection of linear symmetry", ICCV 1987). A run of
such tiles is a line; an edge has no strokes, and foliage no direction.

In the cover, a square that holds a line is split one way at a time: first across the line, which parts it from what
lies above and below, then along it. Each step costs one token rather than three.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import cv2
import numpy as np
import numpy.typing as npt
import torch

from arr_coc.texture.covers import CoverTree, quadtree
from arr_coc.texture.regions import (
    Ints,
    exist_on,
    level_shape,
    region_pool,
    region_scales,
    shape_pool,
)
from arr_coc.types import LEVELS, REGION_SHAPES, TILE_PX

Map = npt.NDArray[np.float32]

FINE = 1
COARSE = (3, 4)
"""Mipmap levels at which strokes and the direction of lines are looked for: 3 parts the lines of a page, 4 the words of
one line no more."""

STROKES = 3.0
"""Mean step between neighbouring texels along a line, in grey levels of 255, from which it counts as print."""

COHERENCE = 0.5
"""By how much of the coarse gradients' energy more lies across the line than along it, from which it is one."""

LEAST_RUN = 3
"""Tiles in a row from which a line is one; smaller gaps in it are filled."""

STAY = 0.7
"""A tile of a line stays one down to this share of the thresholds."""

WINDOW = 5
"""Tiles of a line whose coarse gradients are taken together."""


class Levels(Protocol):
    """The part of a texture view that lines are found in."""

    def read(self, level: int) -> npt.NDArray[np.uint8]:
        """Level 0…5 of the padded picture: uint8 [H >> level, W >> level, 3]."""
        ...


def line_strength(view: Levels) -> Map:
    """Strength of a line of text at each tile, along rows and along columns: float32 [2, gh, gw]; 1 is a line's."""
    fine = cv2.cvtColor(view.read(FINE), cv2.COLOR_RGB2GRAY)
    grid = fine.shape[0] * 2 // TILE_PX, fine.shape[1] * 2 // TILE_PX
    coherence = np.max([_coherence(view.read(level), grid) for level in COARSE], axis=0)
    strokes = np.stack([_tile_means(_steps(fine, axis), grid) for axis in (1, 0)])
    return np.asarray(np.minimum(coherence / np.float32(COHERENCE), strokes / np.float32(STROKES)))


def _coherence(texels: npt.NDArray[np.uint8], grid: tuple[int, int]) -> Map:
    """Return the share of the gradients' energy across rows, less that along them; the same of columns: float32 [2, gh,
    gw]."""
    grey = cv2.cvtColor(texels, cv2.COLOR_RGB2GRAY)
    slopes = (cv2.Sobel(grey, cv2.CV_32F, *order, borderType=cv2.BORDER_REPLICATE) for order in ((0, 1), (1, 0)))
    down, across = (_tile_means(slope * slope, grid) for slope in slopes)
    shares = []
    for over, along, window in ((down, across, (WINDOW, 1)), (across, down, (1, WINDOW))):
        over_energy, along_energy = (cv2.blur(part, window, borderType=cv2.BORDER_REPLICATE) for part in (over, along))
        shares.append((over_energy - along_energy) / np.maximum(over_energy + along_energy, np.float32(1)))
    return np.stack(shares)


def line_tiles(strength: Map, previous: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_]:
    """Return the tiles of lines along rows and along columns: bool [2, gh, gw], none of them both.

    `previous` are those of the frame before, carried along with motion: what was of a line stays so a little longer.
    """
    least = 1.0 if previous is None else np.where(previous, np.float32(STAY), np.float32(1))
    candidates = (strength >= least) & (strength >= strength[::-1])
    return np.stack([_runs(candidates[0], (LEAST_RUN, 1)), _runs(candidates[1], (1, LEAST_RUN)) & ~candidates[0]])


def line_pairs(lines: npt.NDArray[np.bool_]) -> Ints:
    """Return each two neighbouring tiles of a line, of `lines` bool [2, gh, gw], as one region: int64 [P, 3]."""
    pairs = []
    for tiles, scales in zip(lines, ((0, 1), (1, 0)), strict=True):
        code = REGION_SHAPES.index(scales)
        rows = tiles.shape[0] >> scales[0] << scales[0]
        cols = tiles.shape[1] >> scales[1] << scales[1]
        row, col = np.nonzero(shape_pool(tiles[:rows, :cols], code, np.logical_and))
        pairs.append(np.stack([np.full_like(row, code), row, col], axis=1))
    return np.concatenate(pairs)


def _runs(tiles: npt.NDArray[np.bool_], size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return the tiles that lie in a run of at least `size` (width, height), its gaps filled."""
    run = np.ones(size[::-1], np.uint8)
    filled = cv2.morphologyEx(tiles.astype(np.uint8), cv2.MORPH_CLOSE, run)
    opened = cv2.morphologyEx(filled, cv2.MORPH_OPEN, run, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    return np.asarray(opened.astype(bool))


def _tile_means(values: npt.NDArray[Any], grid: tuple[int, int]) -> Map:
    return np.asarray(cv2.resize(values.astype(np.float32, copy=False), grid[::-1], interpolation=cv2.INTER_AREA))


def _steps(image: npt.NDArray[np.uint8], axis: int) -> npt.NDArray[np.uint8]:
    """Return the differences of neighbours along an axis, of the image's own size."""
    before, after = (image[:-1], image[1:]) if axis == 0 else (image[:, :-1], image[:, 1:])
    steps = np.zeros_like(image)
    cv2.absdiff(before, after, dst=steps[: before.shape[0], : before.shape[1]])
    return steps


LARGEST = 2
"""Level of the largest square that is split one way at a time."""

_CODES = np.full((LEVELS, LEVELS), -1)
_CODES[tuple(np.array(REGION_SHAPES).T)] = np.arange(len(REGION_SHAPES))


class LineTree(CoverTree):
    """A quadtree whose squares of levels 1 and 2 are split one way at a time if they hold a line of text."""

    def __init__(self, shape: tuple[int, int], top: int, lines: npt.NDArray[np.bool_]) -> None:
        """`lines` bool [2, gh, gw], as `line_tiles` gives them."""
        rows, cols = level_shape(shape, top)
        row, col = np.divmod(np.arange(rows * cols), cols)
        roots = np.stack([np.full_like(row, top), row, col], axis=1)
        waiting: list[list[tuple[Ints, Ints]]] = [[] for _ in range(2 * top + 1)]
        waiting[2 * top].append((roots, np.full(len(roots), -1)))
        blocks = []
        parents = []
        halved = []
        count = 0
        for scale in reversed(range(2 * top + 1)):
            if not waiting[scale]:
                continue
            regions, parent = (np.concatenate(part) for part in zip(*waiting[scale], strict=True))
            down, across = _ways(regions, lines)
            for way in ((1, 1), (1, 0), (0, 1)):
                indices = np.flatnonzero((down == way[0]) & (across == way[1]))
                if not len(indices):
                    continue
                children, parent_index = _children(regions[indices], way, shape)
                waiting[scale - sum(way)].append((children, count + indices[parent_index]))
            blocks.append(regions)
            parents.append(parent)
            halved.append(down + across == 1)
            count += len(regions)
        super().__init__(shape, np.concatenate(blocks), np.concatenate(parents))
        self._halved = np.concatenate(halved)[: self.inner]
        self._inner_scales = region_scales(self.regions[: self.inner]).sum(axis=1)

    def priorities(self, worth: torch.Tensor) -> torch.Tensor:
        # worth of splitting a region one way, of splitting it both ways: half of the gain at a third of the cost
        priority = np.where(self._halved, worth.numpy() * np.float32(1.5), worth.numpy())
        for scale in np.unique(self._inner_scales)[::-1].tolist():
            indices = np.flatnonzero((self._inner_scales == scale) & (self.parent[: self.inner] >= 0))
            priority[indices] = np.minimum(priority[indices], priority[self.parent[indices]])
        return torch.from_numpy(priority)


@lru_cache(maxsize=8)
def _line_tree(shape: tuple[int, int], top: int, lines: bytes) -> LineTree:
    return LineTree(shape, top, np.frombuffer(lines, bool).reshape(2, *shape))


def line_tree(top: int, lines: npt.NDArray[np.bool_]) -> CoverTree:
    """Return the tree of a grid with lines bool [2, gh, gw]; kept while they stay. Without any line, the quadtree."""
    shape = (lines.shape[1], lines.shape[2])
    if lines.any():
        return _line_tree(shape, top, lines.tobytes())
    return quadtree(shape, top)


def _ways(regions: Ints, lines: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which regions of one size are split into rows, and which into columns: bool [K] each.

    A square with a line is split across it. What that leaves is split across it once more if the line fills half of
    it, and otherwise along it: side by side, lines are read better in squares than in stripes of the same size.
    """
    rows, cols = region_scales(regions).T
    along_rows, along_cols = (region_pool(regions, tiles.astype(np.int32)) for tiles in lines)
    small = rows + cols <= 2 * LARGEST
    wide = small & (along_rows > 0) & (along_rows >= along_cols)
    tall = small & (along_cols > 0) & ~wide
    into_rows = wide & (rows > 0) & ((rows == cols) | ((cols > rows) & _in_one_half(regions, lines[0], axis=0)))
    into_cols = tall & (cols > 0) & ((rows == cols) | ((rows > cols) & _in_one_half(regions, lines[1], axis=1)))
    neither = ~into_rows & ~into_cols
    return into_rows | (neither & (rows >= cols) & (rows > 0)), into_cols | (neither & (cols >= rows) & (cols > 0))


def _in_one_half(regions: Ints, line: npt.NDArray[np.bool_], axis: int) -> npt.NDArray[np.bool_]:
    """Return the regions of which only the even or the odd rows (columns, if `axis` is 1) hold tiles of a line."""
    odd = np.indices(line.shape, sparse=True)[axis] % 2 == 1
    halves = [region_pool(regions, (line & side).astype(np.int32)) > 0 for side in (odd, ~odd)]
    return np.asarray(halves[0] != halves[1])


def _children(regions: Ints, way: tuple[int, int], shape: tuple[int, int]) -> tuple[Ints, Ints]:
    """Return the parts [C, 3] of regions [K, 3] that lie on the grid, and of which region each is a part: int64 [C]."""
    parts = np.indices((1 << way[0], 1 << way[1])).reshape(2, -1).T
    codes = _CODES[tuple((region_scales(regions) - way).T)]
    places = (regions[:, None, 1:] << way) + parts
    children = np.concatenate([np.broadcast_to(codes[:, None, None], (*places.shape[:2], 1)), places], axis=2)
    parent_index = np.arange(len(regions)).repeat(len(parts))
    on_grid = exist_on(children.reshape(-1, 3), shape)
    return children.reshape(-1, 3)[on_grid], parent_index[on_grid]
