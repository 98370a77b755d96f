"""Foveation around one fixation, as in the retina: detail falls off with distance from where one looks."""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.quadtree import DULL, QuadTree, Split, Worth, quadtree, top_level
from arr_coc.types import LEVELS

FOVEA_TILES = 1.5
"""Standard deviation, in tiles, of the neighbourhood that a fixation is chosen for."""

RICH_ENTROPY = 0.1
"""Entropy from which a tile holds enough to be looked at; print has 0.15 and more, a noisy wall hardly any."""

EQUAL = 1e-4

Map = npt.NDArray[np.float32]


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


def fixation_point(relevance: Map, entropy: Map | None = None) -> tuple[float, float]:
    """Return where to look: the middle of the tile around which most relevance lies, (row, col) in tiles.

    `relevance` float32 [gh, gw]; `entropy` float32 [gh, gw] is what each tile holds: what holds nothing is not looked
    at. A trained scorer that is asked about words finds them at the ends of a paragraph rather than inside, where a
    tile is mostly margin, so no single tile decides: a fovea's worth of tiles does, each with a little for its own
    sake. Of equals, the nearest to the middle of the frame.
    """
    worth = relevance.astype(np.float32)
    if entropy is not None:
        worth = (worth + np.float32(DULL)) * np.minimum(1, entropy.astype(np.float32) / np.float32(RICH_ENTROPY))
    around = cv2.GaussianBlur(worth, (0, 0), FOVEA_TILES, borderType=cv2.BORDER_CONSTANT)
    rows, cols = np.nonzero(around >= around.max() - EQUAL)
    middles = rows + 0.5, cols + 0.5
    away = np.hypot(middles[0] - relevance.shape[0] / 2, middles[1] - relevance.shape[1] / 2)
    best = int(away.argmin())
    return float(middles[0][best]), float(middles[1][best])
