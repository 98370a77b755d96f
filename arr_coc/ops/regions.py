"""Region geometry: shapes, places, counts, painting, quadtree and fixation covers.

A region (shape, r, c) covers tiles [r·2^a, (r+1)·2^a) × [c·2^b, (c+1)·2^b), cut off at the grid's edge, where
(a, b) = `REGION_SHAPES[shape]`. Shapes 0 to 5 are the squares of the mipmap levels, a = b = level.

A split replaces a region by its (one, two or four) children, and costs the tokens that this adds. When no child is
ever worth more than its parent, splitting greedily in order of worth per region is the same as sorting all regions by
worth once and splitting the longest prefix that the budget pays: so a cover is one sort and one cumulative sum.
"""

from __future__ import annotations

import math
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
_AREAS = np.array([*_SCALES.sum(axis=1), 2 * LEVELS, 2 * LEVELS], np.float32)
"""Log2 of a region's area in tiles, by shape; more than any where a tile is `UNKNOWN` or `ABSENT` (−1, the last)."""


def region_areas() -> npt.NDArray[np.float32]:
    """Log2 of a region's area in tiles, by shape; more than any for `UNKNOWN` and `ABSENT` (−1, the last)."""
    return _AREAS.copy()


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

    with torch.inference_mode(False):  # kept, and used where gradients are
        return torch.tensor(REGION_SHAPES, device=device)


def region_sides(regions: Array) -> Array:
    """Rows and columns, in tiles, of regions int [..., 3]: int64 [..., 2]."""
    scales = region_scales(regions)
    return 1 << scales


def first_tiles(regions: Array) -> Array:
    """The top left tile (row, col) of regions int [..., 3]: int64 [..., 2]."""
    places = regions[..., 1:]
    return places * region_sides(regions)


def tile_boxes(regions: Regions, shape: tuple[int, int]) -> Ints:
    """The tiles of regions [K, 3] on a grid of `shape`: int64 [K, 4] (top, left, bottom, right), half-open."""
    first = first_tiles(regions)
    return np.concatenate([first, np.minimum(first + region_sides(regions), shape)], axis=1)


def exist_on(regions: Regions, shape: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Tell of each region [K, 3] whether it has a shape that exists and begins within a grid of `shape`: bool [K]."""
    shapes, rows, cols = regions.astype(np.uint64).T  # what is below 0 becomes very large
    counts = -(-np.array(shape) >> _SCALES)[np.minimum(shapes, len(_SCALES) - 1).astype(np.intp)]
    return (shapes < len(_SCALES)) & (rows < counts[:, 0]) & (cols < counts[:, 1])


def shape_grid(shape: tuple[int, int], code: int) -> tuple[int, int]:
    """Rows and columns of the grid of regions of one shape over a tile grid of `shape`."""
    rows, cols = REGION_SHAPES[code]
    return -(-shape[0] >> rows), -(-shape[1] >> cols)


def level_shape(shape: tuple[int, int], level: int) -> tuple[int, int]:
    """Rows and columns of the grid of squares of one level over a tile grid of `shape`."""
    return -(-shape[0] >> level), -(-shape[1] >> level)


def level_count(shape: tuple[int, int], level: int) -> int:
    """Return the number of squares of one level that cover a tile grid of `shape`."""
    rows, cols = level_shape(shape, level)
    return rows * cols


def _paired(values: npt.NDArray[Any], axis: int, combine: np.ufunc) -> npt.NDArray[Any]:
    """Each two neighbours along an axis combined; of an odd number, the last one by itself."""
    first, second = (slice(None),) * axis + (slice(0, None, 2),), (slice(None),) * axis + (slice(1, None, 2),)
    pairs = values[first].copy()
    half = pairs[(slice(None),) * axis + (slice(values.shape[axis] // 2),)]
    combine(half, values[second], out=half)
    return pairs


def shape_pool(values: npt.NDArray[Any], code: int, combine: np.ufunc = np.add) -> npt.NDArray[Any]:
    """`values` [gh, gw] combined (added, or the largest taken) over every region of one shape: `shape_grid`'s shape."""
    for axis, halvings in enumerate(REGION_SHAPES[code]):
        for _ in range(halvings):
            values = _paired(values, axis, combine)
    return values


def spread(coarse: npt.NDArray[Any], code: int, shape: tuple[int, int]) -> npt.NDArray[Any]:
    """The value of each region of one shape given to all of its tiles: `shape_grid`'s shape → [gh, gw]."""
    rows, cols = REGION_SHAPES[code]
    if rows:
        coarse = coarse.repeat(1 << rows, axis=0)[: shape[0]]
    return coarse.repeat(1 << cols, axis=1)[:, : shape[1]] if cols else coarse


def tile_counts(regions: Regions, shape: tuple[int, int]) -> Ints:
    """Return the number of tiles of a grid of `shape` that each of `regions` [K, 3] covers: int64 [K]."""
    boxes = tile_boxes(regions, shape)
    return np.asarray((boxes[:, 2:] - boxes[:, :2]).prod(axis=1))


def paint(regions: Regions, values: npt.NDArray[Any], shape: tuple[int, int], empty: float) -> npt.NDArray[Any]:
    """A map [gh, gw] of `values` [K], each on all tiles of its region; `empty` where no region lies. Finer regions lie
    over coarser ones."""
    painted = np.full(shape, empty, dtype=values.dtype)
    for code in sorted(np.unique(regions[:, 0]).tolist(), key=lambda code: -sum(REGION_SHAPES[code])):
        mine = regions[:, 0] == code
        coarse = np.full(shape_grid(shape, code), empty, dtype=values.dtype)
        there = np.zeros(coarse.shape, dtype=bool)
        at = regions[mine, 1], regions[mine, 2]
        coarse[at] = values[mine]
        there[at] = True
        np.copyto(painted, spread(coarse, code, shape), where=spread(there, code, shape))
    return painted


def region_pool(regions: Regions, values: npt.NDArray[Any], combine: np.ufunc = np.add) -> npt.NDArray[Any]:
    """`values` [gh, gw] combined (added, or the largest taken) over each region's tiles: [K], of their dtype."""
    pooled = np.empty(len(regions), values.dtype)
    for code in np.unique(regions[:, 0]).tolist():
        mine = regions[:, 0] == code
        pooled[mine] = shape_pool(values, code, combine)[regions[mine, 1], regions[mine, 2]]
    return pooled


def region_mean(regions: Regions, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The mean of `values` [gh, gw] over each region's tiles: float32 [K]."""
    tiles = tile_counts(regions, (values.shape[0], values.shape[1]))
    return np.asarray(region_pool(regions, values) / tiles, np.float32)


def shape_map(regions: Regions, shape: tuple[int, int]) -> npt.NDArray[np.int8]:
    """The shape (its code) of the region that shows each tile, `ABSENT` where none does: int8 [gh, gw]."""
    return paint(regions, regions[:, 0].astype(np.int8), shape, ABSENT)


def overview_regions(shape: tuple[int, int], tokens: int) -> npt.NDArray[np.int64]:
    """The cover of a tile grid by one level, the finest that takes at most `tokens` regions: int64 [K, 3].

    In token order; none, [0, 3], where even the coarsest level takes more.
    """
    fitting = (level for level in range(LEVELS) if level_count(shape, level) <= tokens)
    level = next(fitting, None)
    if level is None:
        return np.zeros((0, 3), np.int64)
    rows, cols = level_shape(shape, level)
    row, col = np.divmod(np.arange(rows * cols), cols)
    return np.stack([np.full_like(row, level), row, col], axis=1).astype(np.int64)


def smooth_map(values: npt.NDArray[np.float32], level: int, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """The map [gh, gw] of `values` [K] of the regions that cover a tile grid by one level, in token order.

    Bilinear between the regions' middles, so that what lies at a region's edge has a share of its neighbour's value.
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


DULL = 0.1
"""Differences well below this relevance do not matter: what noise and exposure do to dull tiles turns no order."""

Worth = npt.NDArray[np.float32]
Split = npt.NDArray[np.bool_]


class CoverTree:
    """Regions over a tile grid that descend from each other: whatever is split, the leaves are a disjoint cover.

    `regions` int64 [N, 3], parents before children; `parent` int64 [N] (−1 for the first `roots`); `cost` int64 [N],
    the tokens that splitting adds; `tiles` float32 [N], how many tiles each covers. The first `inner` have children.
    """

    def __init__(self, shape: tuple[int, int], regions: Ints, parent: Ints) -> None:
        self.shape, self.regions, self.parent = shape, regions, parent
        self.roots = int((parent < 0).sum())
        children = np.bincount(parent[self.roots :], minlength=len(regions))
        self.inner = int(np.flatnonzero(children).max(initial=-1)) + 1
        self.cost = np.maximum(children - 1, 0)
        self.tiles = tile_counts(regions, shape).astype(np.float32)
        first = first_tiles(regions)
        self.by_place = np.lexsort((regions[:, 0], first[:, 0] * shape[1] + first[:, 1]))

    @property
    def scales(self) -> Ints:
        """Log2 of the area of the `inner` regions in tiles, before the grid's edge cuts them off: int64 [inner]."""
        return np.asarray(region_scales(self.regions[: self.inner]).sum(axis=1))

    def pyramid(self, values: npt.NDArray[np.float32], combine: np.ufunc = np.add) -> npt.NDArray[np.float32]:
        """`values` [gh, gw] added up for every region, or their largest, in the order of `regions`: [N]."""
        return region_pool(self.regions, values, combine)

    def ranked(self, worth: Worth) -> Worth:
        """The worth [inner] of splitting each region for as many tokens as a square takes, no child's more than its
        parent's; from the worth of its tiles."""
        return worth

    def root(self) -> Split:
        """The coarsest cover: nothing split. bool [inner]."""
        return np.zeros(self.inner, dtype=bool)

    def tokens(self, split: Split) -> int:
        """Number of regions of the cover."""
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
        return self.by_place[(exists & ~whole)[self.by_place]]


class QuadTree(CoverTree):
    """The squares of levels `top`…0 over a tile grid, coarsest first. `inner` regions are those of levels ≥ 1."""

    def __init__(self, shape: tuple[int, int], top: int) -> None:
        self.top = top
        starts: list[int] = []
        blocks, parents = [], []
        offset = 0
        for level in range(top, -1, -1):
            rows, cols = level_shape(shape, level)
            row, col = np.divmod(np.arange(rows * cols), cols)
            blocks.append(np.stack([np.full_like(row, level), row, col], axis=1))
            upper_cols = level_shape(shape, level + 1)[1]
            upper = starts[-1] + (row >> 1) * upper_cols + (col >> 1) if starts else np.full_like(row, -1)
            parents.append(upper)
            starts.append(offset)
            offset += rows * cols
        super().__init__(shape, np.concatenate(blocks).astype(np.int64), np.concatenate(parents))

    def pyramid(self, values: npt.NDArray[np.float32], combine: np.ufunc = np.add) -> npt.NDArray[np.float32]:
        levels = [values]
        for _ in range(self.top):
            levels.append(_paired(_paired(levels[-1], 0, combine), 1, combine))
        return np.concatenate([level.ravel() for level in reversed(levels)])


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
    tree: CoverTree, relevance: npt.NDArray[np.float32], previous: npt.NDArray[np.int8] | None, stickiness: float
) -> Worth:
    """Return the worth of splitting each region: the sum of (relevance + `DULL`)³ over its tiles, float32 [inner].

    Each octave of detail is worth the same on every tile (natural pictures have equal energy in each octave: Field,
    1987), times how much the tile matters; the cube keeps many dull tiles from outbidding a few that matter. A region
    that `previous` (map of shapes, int8 [gh, gw]) showed split has its relevance raised by the share `stickiness`, so
    that near-equals do not take turns.
    """
    matter = relevance + np.float32(DULL)
    worth = tree.pyramid(matter * matter * matter)[: tree.inner]
    if previous is None:
        return tree.ranked(worth)
    finest = -tree.pyramid(-_AREAS[previous], np.maximum)[: tree.inner]
    was_split = finest < tree.scales
    return tree.ranked(np.where(was_split, worth * np.float32((1 + stickiness) ** 3), worth))


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
