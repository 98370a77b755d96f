"""Foveation around one fixation, as in the retina: detail falls off with distance from where one looks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.ops.quadtree import QuadTree, Split, Worth, quadtree, top_level


def fixation_cover(
    shape: tuple[int, int], tokens: int, fixation: tuple[float, float]
) -> tuple[npt.NDArray[np.int64], float]:
    """The cover of a grid in at most `tokens` regions whose level grows as log2((e + e0)/e0).

    That is cortical magnification M(e) = M0/(e + e0) (Daniel and Whitteridge, 1961) turned into mipmap levels.
    `fixation` is (row, col) in tiles; e is the distance from it to the nearest point of a region, in frame widths. A
    region is split while its level exceeds the formula's, which is so from a certain e0 on: so e0 is not searched
    for, but read off the last split that the budget pays. Returns regions [K, 3] in token order, and e0 (0 where
    nothing is split).
    """
    tree = quadtree(shape, top_level(shape, tokens))
    worth = fixation_worth(tree, fixation)
    split = tree.refine(tree.root(), worth, max(tokens, tree.roots))
    paid: Split = split & (tree.cost[: tree.inner] > 0)
    e0 = float(-worth[paid].min()) if paid.any() else 0.0
    return tree.regions[tree.leaves(split)], e0


def fixation_worth(tree: QuadTree, fixation: tuple[float, float]) -> Worth:
    """For every region of level ≥ 1, minus the e0 from which on the formula splits it: float32 [inner]."""
    level, *first = tree.regions[: tree.inner].T
    away = []
    for place, start, tiles in zip(fixation, first, tree.shape, strict=True):
        begin = start << level
        end = np.minimum((start + 1) << level, tiles)
        away.append(np.maximum(np.maximum(begin - place, place - end), 0))
    eccentricity = np.hypot(*away) / tree.shape[1]
    return (-eccentricity / ((1 << level) - 1)).astype(np.float32)


def peak(relevance: npt.NDArray[np.float32]) -> tuple[float, float]:
    """The middle of the most relevant tile, (row, col) in tiles."""
    row, col = np.unravel_index(int(relevance.argmax()), relevance.shape)
    return float(row) + 0.5, float(col) + 0.5
