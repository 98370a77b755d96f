"""Quadtree covers of the tile grid: the whole frame in at most K regions, fine where it is worth it.

A split replaces a region by its (one, two or four) children, and costs the tokens that this adds. When no child is
ever worth more than its parent, splitting greedily in order of worth per region is the same as sorting all regions by
worth once and splitting the longest prefix that the budget pays: so a cover is one sort and one cumulative sum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from arr_coc.ops.regions import ABSENT, level_count, level_shape, pool_max, pool_sum
from arr_coc.types import LEVELS

DULL = 0.1
"""Differences well below this relevance do not matter: what noise and exposure do to dull tiles turns no order."""

Worth = npt.NDArray[np.float32]
Split = npt.NDArray[np.bool_]


class QuadTree:
    """The regions of levels `top`…0 over a tile grid, coarsest first, and how they descend from each other.

    `regions` int64 [N, 3]; `cost` int64 [N], the tokens that splitting adds (0 at level 0); `parent` int64 [N] (−1
    at the top); `tiles` float32 [N], how many tiles each covers. `inner` regions (levels ≥ 1) come first.
    """

    def __init__(self, shape: tuple[int, int], top: int) -> None:
        self.shape, self.top = shape, top
        starts: list[int] = []
        blocks, parents, costs, tiles = [], [], [], []
        offset = 0
        cover = [np.ones(shape, np.float32)]
        for _ in range(top):
            cover.append(pool_sum(cover[-1]))
        for level in range(top, -1, -1):
            rows, cols = level_shape(shape, level)
            row, col = np.divmod(np.arange(rows * cols), cols)
            blocks.append(np.stack([np.full_like(row, level), row, col], axis=1))
            upper_cols = level_shape(shape, level + 1)[1]
            upper = starts[-1] + (row >> 1) * upper_cols + (col >> 1) if starts else np.full_like(row, -1)
            parents.append(upper)
            children = pool_sum(np.ones(level_shape(shape, level - 1), np.float32)) - 1 if level else np.zeros(shape)
            costs.append(children.ravel().astype(np.int64))
            tiles.append(cover[level].ravel())
            starts.append(offset)
            offset += rows * cols
        self.regions = np.concatenate(blocks).astype(np.int64)
        self.parent, self.cost, self.tiles = np.concatenate(parents), np.concatenate(costs), np.concatenate(tiles)
        self.inner = starts[-1]
        self.roots = level_count(shape, top)
        level, row, col = self.regions.T
        self._by_place = np.lexsort((level, (row << level) * shape[1] + (col << level)))

    def pyramid(self, values: npt.NDArray[np.float32], pool: Callable = pool_sum) -> npt.NDArray[np.float32]:
        """`values` [gh, gw] pooled for every region, in the order of `regions`: [N]."""
        levels = [values]
        for _ in range(self.top):
            levels.append(pool(levels[-1]))
        return np.concatenate([level.ravel() for level in reversed(levels)])

    def root(self) -> Split:
        """The coarsest cover: nothing split. bool [inner]."""
        return np.zeros(self.inner, dtype=bool)

    def tokens(self, split: Split) -> int:
        """How many regions the cover has."""
        return self.roots + int(self.cost[: self.inner][split].sum())

    def refine(self, split: Split, worth: Worth, budget: int) -> Split:
        """The cover after splitting further, in order of `worth` [inner or more], within `budget` tokens.

        `worth` must not be larger for a child than for its parent. At most two tokens of the budget stay
        unspent, unless every region is already a tile.
        """
        ranked = np.where(split, -np.inf, -worth[: self.inner])
        order = np.argsort(ranked, kind="stable")
        paid = np.cumsum(self.cost[order])
        finer = split.copy()
        finer[order[: int(np.searchsorted(paid, budget - self.roots, side="right"))]] = True
        return self._split_free(finer)

    def _split_free(self, split: Split) -> Split:
        """Splits that cost nothing: a region at the edge with a single child shows more through the child."""
        for index in np.flatnonzero((self.cost[: self.inner] == 0) & ~split):
            parent = self.parent[index]
            split[index] = parent < 0 or split[parent]
        return split

    def leaves(self, split: Split) -> npt.NDArray[np.int64]:
        """Indices of the cover's regions, in token order: int64 [K]."""
        whole = np.concatenate([split, np.zeros(len(self.regions) - self.inner, dtype=bool)])
        exists = whole[self.parent]
        exists[: self.roots] = True
        return self._by_place[(exists & ~whole)[self._by_place]]


@lru_cache(maxsize=64)
def quadtree(shape: tuple[int, int], top: int) -> QuadTree:
    """The quadtree of a grid, made once."""
    return QuadTree(shape, top)


def top_level(shape: tuple[int, int], budget: int) -> int:
    """The coarsest level of a cover: the smallest that takes at most half of `budget` tokens.

    Where none does: the smallest whose cover the budget pays at all, else the coarsest there is.
    """
    for limit in (budget // 2, budget):
        for level in range(LEVELS):
            if level_count(shape, level) <= limit:
                return level
    return LEVELS - 1


def split_worth(
    tree: QuadTree, relevance: npt.NDArray[np.float32], previous: npt.NDArray[np.int8] | None, stickiness: float
) -> Worth:
    """What showing a region one level finer is worth: the sum of (relevance + `DULL`)³ over its tiles, float32
    [inner].

    Each octave of detail is worth the same on every tile (natural pictures have equal energy in each octave: Field,
    1987), times how much the tile matters; the cube keeps many dull tiles from outbidding a few that matter. A region
    that `previous` (level map, int8 [gh, gw]) showed split has its relevance raised by the share `stickiness`, so
    that near-equals do not take turns.
    """
    matter = relevance + np.float32(DULL)
    worth = tree.pyramid(matter * matter * matter)[: tree.inner]
    if previous is None:
        return worth
    shown = np.where(previous == ABSENT, LEVELS, previous)
    finest = -tree.pyramid(-shown, pool_max)[: tree.inner]
    was_split = finest < tree.regions[: tree.inner, 0]
    return np.where(was_split, worth * np.float32((1 + stickiness) ** 3), worth)
