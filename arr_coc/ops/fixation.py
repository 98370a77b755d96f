"""Foveation around one fixation, as in the retina: detail falls off with distance from where one looks."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from arr_coc.ops.quadtree import QuadTree, Split, Worth, quadtree, top_level
from arr_coc.types import LEVELS


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


def magnified_cover(
    shape: tuple[int, int],
    tokens: int,
    fixation: tuple[float, float],
    e0: float,
    M0: float = math.inf,  # noqa: N803
) -> tuple[npt.NDArray[np.int64], float]:
    """The cover whose level grows as log2((e + e0)/M0): so many texels a pixel are shown as M(e) = M0/(e + e0) says.

    That is the form in which human cortical magnification is given (Horton and Hoyt, 1991: 17.3 mm/(e + 0.75°)); e and
    e0 are in frame widths. The M0 that is given is lowered as far as `tokens` ask for, and infinite it is as large as
    they pay for: a region is split from M0 = (e + e0)/2^level on. Returns regions [K, 3] in token order, and that M0.
    `tokens` must pay for the coarsest level's cover.
    """
    tree = quadtree(shape, LEVELS - 1)
    worth = (-(eccentricity(tree, fixation) + e0) / (1 << tree.regions[: tree.inner, 0])).astype(np.float32)
    wanted = tree.tokens(-worth < M0)
    split = tree.refine(tree.root(), worth, min(tokens, wanted))
    paid: Split = split & (tree.cost[: tree.inner] > 0)
    reached = float(-worth[paid].min()) if paid.any() else 0.0
    return tree.regions[tree.leaves(split)], M0 if wanted <= tokens and math.isfinite(M0) else reached


def nearest_regions(tree: QuadTree, fixation: tuple[float, float], count: int) -> npt.NDArray[np.int64]:
    """The `count` regions of a tree's coarsest level that lie nearest to the fixation, in token order: [count, 3]."""
    away = eccentricity(tree, fixation, tree.roots)
    return tree.regions[np.sort(np.argsort(away, kind="stable")[:count])]


def fixation_worth(tree: QuadTree, fixation: tuple[float, float]) -> Worth:
    """For every region of level ≥ 1, minus the e0 from which on the formula splits it: float32 [inner]."""
    return (-eccentricity(tree, fixation) / ((1 << tree.regions[: tree.inner, 0]) - 1)).astype(np.float32)


def eccentricity(tree: QuadTree, fixation: tuple[float, float], count: int | None = None) -> npt.NDArray[np.float64]:
    """Distance in frame widths from the fixation to the nearest point of the first `count` regions.

    Of those of level ≥ 1 where `count` is None: float64 [inner].
    """
    level, *first = tree.regions[: tree.inner if count is None else count].T
    away = []
    for place, start, tiles in zip(fixation, first, tree.shape, strict=True):
        begin = start << level
        end = np.minimum((start + 1) << level, tiles)
        away.append(np.maximum(np.maximum(begin - place, place - end), 0))
    return np.asarray(np.hypot(*away) / tree.shape[1])


def peak(relevance: npt.NDArray[np.float32]) -> tuple[float, float]:
    """The middle of the most relevant tile, (row, col) in tiles."""
    row, col = np.unravel_index(int(relevance.argmax()), relevance.shape)
    return float(row) + 0.5, float(col) + 0.5
