"""Covers of a tile grid: quadtrees on any device, and the covers of a fixation.

A split replaces a region by its (one, two or four) children, and costs the tokens that this adds. When no child is
ever worth more than its parent, splitting greedily in order of worth per region is the same as sorting all regions by
worth once and splitting the longest prefix that the budget pays: so a cover is one sort and one cumulative sum.
"""

from __future__ import annotations

import math
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import avg_pool2d

from arr_coc.texture.regions import (
    REGION_AREAS,
    Ints,
    first_tiles,
    level_count,
    level_shape,
    region_mean,
    region_pool,
    region_scales,
    shape_map,
)
from arr_coc.types import LEVELS

DULL = 0.1
"""Differences well below this relevance do not matter: what noise and exposure do to dull tiles turns no order."""

CPU = torch.device("cpu")

Map = npt.NDArray[np.float32]


class CoverTree:
    """Regions over a tile grid that descend from each other: whatever is split, the leaves are a disjoint cover.

    `regions` int64 [N, 3], parents before children; `parent` int64 [N] (−1 for the first `roots`); `cost` int64 [N],
    the tokens that splitting adds. The first `inner` have children.
    What is split, and maps, are tensors on the tree's `device`; a tree of any shapes works in host memory alone.
    """

    def __init__(self, shape: tuple[int, int], regions: Ints, parent: Ints, device: torch.device = CPU) -> None:
        self.shape = shape
        self.regions = regions
        self.parent = parent
        self.device = device
        self.roots = int((parent < 0).sum())
        children = np.bincount(parent[self.roots :], minlength=len(regions))
        self.inner = int(np.flatnonzero(children).max(initial=-1)) + 1
        self.cost = np.maximum(children - 1, 0)
        first = first_tiles(regions)
        self.by_place = self.put(np.lexsort((regions[:, 0], first[:, 0] * shape[1] + first[:, 1])))
        self.places = self.put(regions)
        self._costs, self._parents = self.put(self.cost[: self.inner]), self.put(np.maximum(parent, 0))
        self._is_root = self.put(parent < 0)
        scales = region_scales(regions[: self.inner]).sum(axis=1)
        self._fineness, self._fineness_own = self.put(-REGION_AREAS), self.put(-scales)
        free = self.cost[: self.inner] == 0
        self._free = [
            (self.put(index), self._parents[index], self._is_root[index])
            for index in (np.flatnonzero(free & (scales == scale)) for scale in np.unique(scales[free])[::-1])
        ]

    def put(self, table: npt.NDArray[np.generic]) -> torch.Tensor:
        """Return a table of the tree on its device."""
        return torch.from_numpy(np.ascontiguousarray(table)).to(self.device)

    def pyramid(self, values: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        """`values` [gh, gw] added up for every region, or their largest, in the order of `regions`: [N]."""
        return torch.from_numpy(region_pool(self.regions, values.numpy(), np.maximum if largest else np.add))

    def means(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean of `values` [gh, gw] over every region: float32 [N]."""
        return torch.from_numpy(region_mean(self.regions, values.numpy()))

    def shapes(self, split: torch.Tensor) -> torch.Tensor:
        """Return the shape of the region that shows each tile: int8 [gh, gw]."""
        return torch.from_numpy(shape_map(self.regions[self.leaves(split)], self.shape))

    def split_worth(self, relevance: torch.Tensor, previous: torch.Tensor | None, stickiness: float) -> torch.Tensor:
        """Return the worth of splitting each region: the sum of (relevance + `DULL`)³ over its tiles, float32 [inner].

        Each octave of detail is worth the same on every tile (natural pictures have equal energy in each octave: Field,
        1987), times how much the tile matters; the cube keeps many dull tiles from outbidding a few that matter.

        Args:
            relevance: float32 [gh, gw].
            previous: The last frame's map of shapes, int8 [gh, gw], if any.
            stickiness: Share by which the relevance of regions that were split in `previous` is raised, so that
                near-equals do not take turns.
        """
        matter = relevance + DULL
        worth = self.pyramid(matter * matter * matter)[: self.inner]
        if previous is not None:
            finest = self.pyramid(self._fineness.take(previous.long()), largest=True)[: self.inner]
            worth = torch.where(finest > self._fineness_own, worth * (1 + stickiness) ** 3, worth)
        return self.priorities(worth)

    def priorities(self, worth: torch.Tensor) -> torch.Tensor:
        """Return the worth [inner] of splitting each region for as many tokens as a square takes, no child's more than
        its parent's; from the worth of its tiles."""
        return worth

    def root(self) -> torch.Tensor:
        """Return the coarsest cover: nothing split. bool [inner]."""
        return torch.zeros(self.inner, dtype=torch.bool, device=self.device)

    def tokens(self, split: torch.Tensor) -> int:
        """Return the number of regions of the cover."""
        return self.roots + int(self._costs[split].sum())

    def refine(self, split: torch.Tensor, worth: torch.Tensor, budget: int) -> torch.Tensor:
        """Return the cover after splitting further, in order of worth, within a budget.

        At most two tokens of the budget stay unspent, unless every region is already a tile.

        Args:
            split: Regions that are split already, bool [inner].
            worth: Worth of splitting each region, [inner or more]; not larger for a child than for its parent.
            budget: Number of tokens.

        Returns:
            Regions that are split, bool [inner].
        """
        order = torch.where(split, -math.inf, -worth[: self.inner]).argsort(stable=True)
        paid = self._costs.index_select(0, order).cumsum(0) <= budget - self.roots
        finer = split | torch.zeros_like(split).scatter(0, order, paid)
        # splits that cost nothing: a region at the edge with a single child shows more through the child
        for free, parents, are_roots in self._free:
            follows = are_roots | finer.index_select(0, parents)
            finer = finer.scatter(0, free, finer.index_select(0, free) | follows)
        return finer

    def are_leaves(self, split: torch.Tensor) -> torch.Tensor:
        """Return, for each region in token order (`by_place`), whether it is of the cover: bool [N]."""
        is_split = torch.cat([split, split.new_zeros(len(self.regions) - self.inner)])
        leaves = (is_split.index_select(0, self._parents) | self._is_root) & ~is_split
        return leaves.index_select(0, self.by_place)  # a third of the time of an index in brackets, here and elsewhere

    def leaves(self, split: torch.Tensor) -> Ints:
        """Return the indices of the cover's regions, in token order, in host memory: int64 [K]."""
        return self.by_place[self.are_leaves(split)].numpy()


class QuadTree(CoverTree):
    """The squares of levels `top`…0 over a tile grid, coarsest first. `inner` regions are those of levels ≥ 1."""

    def __init__(self, shape: tuple[int, int], top: int, device: torch.device = CPU) -> None:
        self.top = top
        starts: list[int] = []
        blocks = []
        parents = []
        offset = 0
        for level in range(top, -1, -1):
            rows, cols = level_shape(shape, level)
            row, col = np.divmod(np.arange(rows * cols), cols)
            blocks.append(np.stack([np.full_like(row, level), row, col], axis=1))
            upper_cols = level_shape(shape, level + 1)[1]
            if starts:
                upper = starts[-1] + (row >> 1) * upper_cols + (col >> 1)
            else:
                upper = np.full_like(row, -1)
            parents.append(upper)
            starts.append(offset)
            offset += rows * cols
        super().__init__(shape, np.concatenate(blocks).astype(np.int64), np.concatenate(parents), device)
        down, across = np.indices(shape)
        self._cells = [
            self.put((start + (down >> level) * level_shape(shape, level)[1] + (across >> level)).ravel())
            for level, start in zip(range(top, 0, -1), starts, strict=False)
        ]

    def pyramid(self, values: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        levels = [values[None]]
        for _ in range(self.top):
            finer = levels[-1]
            levels.append(torch.max_pool2d(finer, 2, ceil_mode=True) if largest else _paired(_paired(finer, 0), 1))
        return torch.cat([level.flatten() for level in reversed(levels)])

    def means(self, values: torch.Tensor) -> torch.Tensor:
        return torch.cat([means.flatten() for means in reversed(pyramid_means(values, self.top))])

    def shapes(self, split: torch.Tensor) -> torch.Tensor:
        finer = torch.ones(self.shape, dtype=torch.bool, device=self.device).flatten()
        codes = torch.full_like(finer, self.top, dtype=torch.int8)
        for cells in self._cells:
            finer = finer & split.index_select(0, cells)
            codes = codes - finer.to(torch.int8)
        return codes.view(self.shape)


def pyramid_means(values: torch.Tensor, top: int) -> list[torch.Tensor]:
    """Return the means of `values` [gh, gw] over the squares of levels 0…`top`, on any device: float32, as
    `level_shape`. They are added up as `region_mean` does, rows first, which gives the same bits."""
    down = [values[None]]
    for _ in range(top):
        down.append(_paired(down[-1], 0))
    # columns of all levels at once
    means = [values]
    across = torch.cat(down, dim=1)
    for level in range(1, top + 1):
        across = _paired(across[:, down[level - 1].shape[1] :], 1)
        means.append(across[0, : down[level].shape[1]] / _level_tiles(values.shape, level, values.device))
    return means


@lru_cache(maxsize=64)
def _level_tiles(shape: tuple[int, int], level: int, device: torch.device) -> torch.Tensor:
    """Return the number of tiles of each square of a level: float32, as `level_shape`."""
    rows, cols = (np.minimum(tiles - (np.arange(-(-tiles >> level)) << level), 1 << level) for tiles in shape)
    return torch.from_numpy(np.outer(rows, cols).astype(np.float32)).to(device)


def _paired(values: torch.Tensor, axis: int) -> torch.Tensor:
    """Return each two neighbours along an axis of [1, rows, cols] added; of an odd number, the last one by itself."""
    sides = (2, 1) if axis == 0 else (1, 2)
    return avg_pool2d(values, sides, ceil_mode=True, divisor_override=1)


@lru_cache(maxsize=64)
def quadtree(shape: tuple[int, int], top: int, device: torch.device = CPU) -> QuadTree:
    """Return the quadtree of a grid on a device, made once."""
    return QuadTree(shape, top, device)


def top_level(shape: tuple[int, int], budget: int) -> int:
    """Return the coarsest level of a cover: the smallest that takes at most half of `budget` tokens.

    If none does: the smallest whose cover the budget pays at all, else the coarsest there is.
    """
    for limit in (budget // 2, budget):
        for level in range(LEVELS):
            if level_count(shape, level) <= limit:
                return level
    return LEVELS - 1


EQUAL = 1e-4


def fixation_cover(
    shape: tuple[int, int], tokens: int, fixation: tuple[float, float]
) -> tuple[npt.NDArray[np.int64], float]:
    """Return the cover of a grid in at most `tokens` regions whose level grows as log2((e + e0)/e0).

    That is cortical magnification M(e) = M0/(e + e0) (Daniel and Whitteridge, 1961) turned into mipmap levels.
    e is the distance from the fixation to the nearest point of a region, in frame widths. A region is split while its
    level exceeds the formula's, which is so from a certain e0 on: so e0 is not searched for, but read off the last
    split that the budget pays.

    Args:
        shape: (rows, cols) of the grid.
        tokens: The budget.
        fixation: (row, col) in tiles.

    Returns:
        Regions int64 [K, 3] in token order, and e0 (0 if nothing is split).
    """
    tree = quadtree(shape, top_level(shape, tokens))
    worth = fixation_worth(tree, fixation)
    split = tree.refine(tree.root(), torch.from_numpy(worth), max(tokens, tree.roots))
    return tree.regions[tree.leaves(split)], _last_paid(tree, split, worth)


def magnified_cover(
    shape: tuple[int, int],
    tokens: int,
    fixation: tuple[float, float],
    e0: float,
    M0: float = math.inf,  # noqa: N803
) -> tuple[npt.NDArray[np.int64], float]:
    """Return the cover whose level grows as log2((e + e0)/M0): a pixel shows M(e) = M0/(e + e0) texels.

    That is the form in which human cortical magnification is given (Horton and Hoyt, 1991: 17.3 mm/(e + 0.75°)). A
    region is split from M0 = (e + e0)/2^level on.

    Args:
        shape: (rows, cols) of the grid.
        tokens: The budget, which must pay for the coarsest level's cover.
        fixation: (row, col) in tiles.
        e0: Of the formula, in frame widths.
        M0: The largest M0, which is lowered until the budget pays for the cover.

    Returns:
        Regions int64 [K, 3] in token order, and the M0 that they follow.
    """
    tree = quadtree(shape, LEVELS - 1)
    worth = (-(eccentricity(tree, fixation) + e0) / (1 << tree.regions[: tree.inner, 0])).astype(np.float32)
    cover_tokens = tree.tokens(torch.from_numpy(-worth < M0))
    split = tree.refine(tree.root(), torch.from_numpy(worth), min(tokens, cover_tokens))
    if cover_tokens <= tokens and math.isfinite(M0):
        actual_m0 = M0
    else:
        actual_m0 = _last_paid(tree, split, worth)
    return tree.regions[tree.leaves(split)], actual_m0


def _last_paid(tree: CoverTree, split: torch.Tensor, worth: Map) -> float:
    """Worth of the last split that cost tokens, 0 without one."""
    paid = split.numpy() & (tree.cost[: tree.inner] > 0)
    return float(-worth[paid].min()) if paid.any() else 0.0


def nearest_regions(tree: QuadTree, fixation: tuple[float, float], count: int) -> npt.NDArray[np.int64]:
    """Return the regions of a tree's coarsest level that lie nearest to the fixation, in token order: int64 [count, 3].

    Args:
        tree: The quadtree of the grid.
        fixation: (row, col) in tiles.
        count: Number of regions.
    """
    distances = eccentricity(tree, fixation, tree.roots)
    return tree.regions[np.sort(np.argsort(distances, kind="stable")[:count])]


def fixation_worth(tree: QuadTree, fixation: tuple[float, float]) -> Map:
    """For every region of level ≥ 1, minus the e0 from which on the formula splits it: float32 [inner]."""
    return (-eccentricity(tree, fixation) / ((1 << tree.regions[: tree.inner, 0]) - 1)).astype(np.float32)


def eccentricity(tree: QuadTree, fixation: tuple[float, float], count: int | None = None) -> npt.NDArray[np.float64]:
    """Return the distance in frame widths from the fixation to the nearest point of regions: float64 [count].

    Args:
        tree: The quadtree of the grid.
        fixation: (row, col) in tiles.
        count: Number of regions, from the first one; None for those of level ≥ 1.
    """
    level, *first = tree.regions[: tree.inner if count is None else count].T
    offsets = []
    for place, start, tiles in zip(fixation, first, tree.shape, strict=True):
        begin = start << level
        end = np.minimum((start + 1) << level, tiles)
        offsets.append(np.maximum(np.maximum(begin - place, place - end), 0))
    return np.asarray(np.hypot(*offsets) / tree.shape[1])


def fixation_point(relevance: Map, entropy: Map | None = None) -> tuple[float, float]:
    """Return the fixation: the middle of the tile around which most relevance lies, (row, col) in tiles.

    `relevance` float32 [gh, gw]; `entropy` float32 [gh, gw] is what each tile holds: what holds nothing is not looked
    at. A trained scorer that is asked about words finds them at the ends of a paragraph rather than inside, where a
    tile is mostly margin, so no single tile decides: a fovea's worth of tiles does, each with a little for its own
    sake. Of equals, the nearest to the middle of the frame.
    """
    worth = relevance.astype(np.float32)
    if entropy is not None:
        # entropy from which a tile holds enough to be looked at; print has 0.15 and more, a noisy wall hardly any.
        worth = (worth + np.float32(DULL)) * np.minimum(1, entropy.astype(np.float32) / np.float32(0.1))
    # standard deviation, in tiles, of the neighbourhood that a fixation is chosen for
    around = cv2.GaussianBlur(worth, (0, 0), 1.5, borderType=cv2.BORDER_CONSTANT)
    rows, cols = np.nonzero(around >= around.max() - EQUAL)
    middles = rows + 0.5, cols + 0.5
    distances = np.hypot(middles[0] - relevance.shape[0] / 2, middles[1] - relevance.shape[1] / 2)
    best = int(distances.argmin())
    return float(middles[0][best]), float(middles[1][best])
