"""Strategies that choose regions for a budget of tokens, the guard against pictures without structure, and `Tensions`.

A stream's guard judges the picture, by `picture_structure`. The relevance map cannot tell: a trained scorer smooths
over its neighbours and knows where in a frame things usually are, so it makes structured maps of white noise; and it
may find nothing to prefer on a page of print. Where there is a map alone, `map_structure` judges that. What answers
looked
at in a picture overrules how it looks.

| strategy | regions |
| --- | --- |
| `topk` | the K most relevant tiles, level 0 |
| `mixed` | level 0: a share (`coverage`) spread evenly, the rest the most relevant tiles |
| `foveated` | a quadtree cover of the whole frame, fine where relevance is high; K − 2 tokens or more |
| `fixation` | the same, fine around the place of most relevance and coarser with distance |
| `grid` | every n-th tile, n the smallest that the budget pays, phase fixed |
| `uniform` | K regions of one level, spread evenly: the coarsest level that has as many |
| `random` | K tiles drawn with `seed` |
| `auto` | `topk` where glances are made, `grid` for a void; else `foveated` if the model knows levels and has 64 tokens
or more, else `mixed` |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence

from arr_coc.allocation.text_lines import line_pairs, line_tree
from arr_coc.budget import DEFAULT_BUDGET, DEFAULT_LIMITS, Budget, TokenLimits, tokens_for
from arr_coc.errors import NonFiniteError, OptionError, ShapeError, StrategyError
from arr_coc.ops.regions import (
    DULL,
    CoverTree,
    first_tiles,
    fixation_cover,
    fixation_point,
    level_count,
    level_shape,
    paint,
    quadtree,
    region_mean,
    region_pool,
    region_sides,
    shape_map,
    split_worth,
    top_level,
)
from arr_coc.types import LEVELS, Allocation

VOID_STRUCTURE = 0.25
"""Below this a map has no structure. White noise measures 0.00 ± 0.02 on a 34×60 grid, ± 0.12 on 6×6."""

VOID_RANGE = 0.05
"""A map whose values all lie within this has no structure either, whatever its shape."""

LEAST_TILES = 64
"""Pictures of fewer tiles are not judged: so few neighbours prove nothing, and most budgets show all of them."""

_CLEAR = 0.35
"""Above every threshold, hysteresis included: nothing else needs to be measured."""

LEAST_RANGES = (0.05, 0.05, 0.05, 0.02, 0.1)
"""What red, green, blue, edge magnitude and entropy must vary by, between tiles, to count. A blank wall or a slope of
light varies by 0.007, 0.007, 0.007, 0.003 and 0.055 at most, under a sensor's noise of 4 of 255."""

COUNTING = (0, 1, 2, 5, 6)
COLOURS, EDGES, ENTROPY = (0, 1, 2), 5, 6

LEAST_STEP = 0.04
"""By how much a colour must differ from its neighbours' mean somewhere; slopes and spots of light bend by 0.03."""

LEAST_EDGES = 0.004
"""What edge magnitude must vary by where entropy counts: a steep slope fills more or fewer bins of the histogram, and
has no edges."""

Map = npt.NDArray[np.float32]


def map_structure(relevance: Map) -> float:
    """Return the distance of a map [gh, gw] from noise, in [0, 1]: the larger of its coherence and its sparsity.

    Coherence is the mean correlation of horizontal and vertical neighbours (Moran's I at lag one): near 1 for objects
    larger than a tile, 0 for white noise. Sparsity is 2·H − 1 with Hoyer's H (2004) of what exceeds the median: 1 for
    a single tile that stands out, below 0 for noise of any usual distribution. A map whose range is less than
    `VOID_RANGE` measures 0.
    """
    if relevance.size < 4 or float(relevance.max() - relevance.min()) < VOID_RANGE:
        return 0.0
    return float(np.clip(max(_coherence(relevance), _sparsity(relevance)), 0, 1))


def picture_structure(appearance: Map) -> float:
    """Return the distance of a picture from a void (blank, a slope of light, white noise, drops all over), in [0, 1].

    `appearance` float32 [7, gh, gw]: red, green, blue, Sobel gx, gy and magnitude, and entropy of each tile, all of
    them
    absolute. Of each of them but gx and gy, a slope over the frame (a surface of second order) is taken away; the
    largest of their structures counts, but for a colour that only bends, and for entropy without edges. 1 for fewer
    than `LEAST_TILES` tiles.
    """
    rows, cols = appearance.shape[1:]
    if rows * cols < LEAST_TILES:
        return 1.0
    slopes, found = second_order_surfaces(rows, cols), 0.0
    for channel, least in zip(COUNTING, LEAST_RANGES, strict=True):
        values = appearance[channel].ravel()
        rest = (values - slopes @ (values @ slopes)).reshape(rows, cols)
        if float(rest.max() - rest.min()) < least or _is_light(channel, appearance):
            continue
        found = max(found, _coherence(rest))
        if found < _CLEAR:
            found = max(found, _sparsity(np.abs(rest)))
        if found >= _CLEAR:
            break
    return min(1.0, found)


def _is_light(channel: int, appearance: Map) -> bool:
    """Whether slopes of light explain how a channel varies."""
    if channel in COLOURS:
        values = appearance[channel]
        if min(values.shape) < 3:
            return False  # a strip has no tile with neighbours all around
        bends = values[1:-1, 1:-1] - (values[:-2, 1:-1] + values[2:, 1:-1] + values[1:-1, :-2] + values[1:-1, 2:]) / 4
        return float(np.abs(bends).max()) < LEAST_STEP
    return channel == ENTROPY and float(np.ptp(appearance[EDGES])) < LEAST_EDGES


@lru_cache(maxsize=8)
def second_order_surfaces(rows: int, cols: int) -> Map:
    """An orthonormal basis of the surfaces of second order over a grid: float32 [rows · cols, 6]."""
    y, x = (axis.ravel() for axis in np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, cols), indexing="ij"))
    basis = np.linalg.qr(np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1))[0]
    return np.ascontiguousarray(basis, np.float32)


def _coherence(relevance: Map) -> float:
    deviation = relevance - relevance.mean()
    products = float((deviation[1:] * deviation[:-1]).sum() + (deviation[:, 1:] * deviation[:, :-1]).sum())
    pairs = deviation[1:].size + deviation[:, 1:].size
    return products / pairs * deviation.size / float(np.square(deviation).sum())


def _sparsity(relevance: Map) -> float:
    above = np.maximum(relevance - np.median(relevance), 0)
    norm = float(np.sqrt(np.square(above).sum()))
    root = float(np.sqrt(above.size))
    if norm == 0:
        return 0.0
    return 2 * (root - float(above.sum()) / norm) / (root - 1) - 1


Strategy = Literal["auto", "topk", "mixed", "foveated", "fixation", "grid", "uniform", "random"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)

STICKINESS = 0.25
"""How much more a region counts that was shown (as finely) before: near-equals then do not take turns."""

COVER_TOKENS = 64
"""From so many on, `auto` covers the whole frame. With fewer, a cover leaves hardly a tile sharp, and the bundled model
was right up to 1.8 times as often with `mixed`, on scenes that it had not seen (training/README.md)."""

_GOLDEN = 0.381966  # 1 − 1/φ: successive rows of the grid are shifted by this share of the step, so it has no stripes

Regions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tensions:
    """The three tensions, one knob each.

    compress ↔ particularise: `budget`, as `arr_coc.budget` has it, with the `limits` of one that adapts. exploit ↔
    explore: `explore`, the share of the budget for what was not shown for longest. focus ↔ diversify: `coverage`, the
    share spread evenly outside the best regions (`mixed`; a `foveated` cover always leaves half of the budget to its
    coarsest level or finer). Raises ValueError for shares outside [0, 1].
    """

    budget: Budget = DEFAULT_BUDGET
    explore: float = 0.10
    coverage: float = 0.25
    limits: TokenLimits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        for name in ("explore", "coverage"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share of the budget, in [0, 1]; got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class AllocationHistory:
    """Input of an allocation from earlier frames; all of it optional.

    `previous`: the level map that was shown last, carried along with motion, int8 [gh, gw]. `staleness`: how much each
    tile deserves a look for its own sake, float32 [gh, gw]. `explore`: share of the budget that goes by `staleness`.
    """

    previous: npt.NDArray[np.int8] | None = None
    staleness: Map | None = None
    explore: float = 0.0

    def exploring_tokens(self, tokens: int) -> int:
        return 0 if self.staleness is None else round(self.explore * tokens)


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """One frame's worth of choosing: a finite map, a budget in tokens, and the strategy's own settings.

    `entropy` float32 [gh, gw], what each tile holds, where it is known; `lines` bool [2, gh, gw], the tiles of lines of
    text along rows and along columns (`line_tiles`), where wide and tall regions may be chosen.
    """

    relevance: Map
    tokens: int
    coverage: float
    seed: int
    memory: AllocationHistory
    entropy: Map | None = None
    lines: npt.NDArray[np.bool_] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self.relevance.shape
        return rows, cols


def allocate(
    relevance: torch.Tensor | Map,
    budget: Budget | Sequence[Budget] = DEFAULT_BUDGET,
    strategy: str = "auto",
    *,
    coverage: float = 0.25,
    seed: int = 0,
    levels: bool = False,
    memory: AllocationHistory | None = None,
    limits: TokenLimits = DEFAULT_LIMITS,
) -> Allocation:
    """Choose the regions that a budget of tokens buys.

    `relevance` [gh, gw] or [B, gh, gw], a tensor or a NumPy array, is finite and usually in [0, 1]; `budget` as
    `arr_coc.budget` has it, or one for each frame of the batch, clamped to the number of tiles; `limits` are those of
    "auto" and "adaptive"; `levels` says whether the model knows coarse tokens (for `auto`). Returns regions [K, 3],
    relevance [K] (mean over the region's tiles) and mask [K] in token order, on the CPU; with a batch dimension all of
    them are [B, K, …], K the largest of the batch, padded with masked zeros. The same inputs give the same regions.

    Raises BudgetError, StrategyError, ShapeError, OptionError for a `coverage` outside [0, 1], and NonFiniteError for
    NaN or Inf in `relevance`.
    """
    if not 0 <= coverage <= 1:
        raise OptionError(f"coverage is a share of the budget, in [0, 1], got {coverage!r}")
    check_strategy(strategy)
    maps = _checked_map(relevance).detach().to("cpu", torch.float32).numpy()
    frames = maps[None] if maps.ndim == 2 else maps
    budgets = budget if isinstance(budget, Sequence) and not isinstance(budget, str) else [budget] * len(frames)
    if len(budgets) != len(frames):
        raise ShapeError(f"{len(budgets)} budgets were given for {len(frames)} relevance maps")
    chosen = []
    for frame, frame_budget in zip(frames, budgets, strict=True):
        request = AllocationRequest(
            frame, tokens_for(frame_budget, frame, limits), coverage, seed, memory or AllocationHistory()
        )
        chosen.append(allocate_frame(request, resolve(strategy, frame, request.tokens, levels)))
    return chosen[0] if maps.ndim == 2 else stacked(chosen)


def allocate_frame(request: AllocationRequest, strategy: str) -> Allocation:
    """Choose one frame's regions by a strategy that is not `auto`; nothing is checked."""
    regions = _choose(request, strategy)
    return Allocation(
        regions=torch.from_numpy(regions),
        relevance=torch.from_numpy(region_mean(regions, request.relevance)),
        mask=torch.ones(len(regions), dtype=torch.bool),
    )


def check_strategy(strategy: str) -> None:
    """Raises StrategyError, naming the strategies that there are."""
    if strategy not in STRATEGIES:
        raise StrategyError(f"unknown strategy {strategy!r}; there are {', '.join(STRATEGIES)}")


def resolve(strategy: str, relevance: Map, tokens: int, levels: bool) -> str:
    """Return the strategy that `auto` means for one map [gh, gw] and so many tokens; any other stays itself."""
    return resolve_strategy(strategy, map_structure(relevance) < VOID_STRUCTURE, tokens, levels)


def resolve_strategy(strategy: str, void: bool, tokens: int, levels: bool, glances: bool = False) -> str:
    """Return the strategy that `auto` means where it is known whether the picture is a void.

    `glances`: whether the question chooses from the first frame on, so that coverage is needless.
    """
    if strategy != "auto":
        return strategy
    if void:
        return "grid"
    if glances:
        return "topk"
    return "foveated" if levels and tokens >= COVER_TOKENS else "mixed"


def stacked(frames: list[Allocation]) -> Allocation:
    """Allocations of several frames as one with a batch dimension, padded with masked zeros to the longest."""
    return Allocation(
        regions=pad_sequence([frame.regions for frame in frames], batch_first=True),
        relevance=pad_sequence([frame.relevance for frame in frames], batch_first=True),
        mask=pad_sequence([frame.mask for frame in frames], batch_first=True),
    )


def _checked_map(relevance: torch.Tensor | Map) -> torch.Tensor:
    """The map as a tensor."""
    if isinstance(relevance, np.ndarray) and relevance.dtype.kind in "fiub":
        relevance = torch.from_numpy(np.ascontiguousarray(relevance))
    if not isinstance(relevance, torch.Tensor) or relevance.dtype.is_complex:
        found = str(relevance.dtype) if isinstance(relevance, torch.Tensor) else type(relevance).__name__
        raise ShapeError(f"relevance must be a tensor or an array of real numbers, got {found}")
    if relevance.ndim not in (2, 3) or 0 in relevance.shape:
        raise ShapeError(f"relevance must be [gh, gw] or [B, gh, gw], got {list(relevance.shape)}")
    if not torch.isfinite(relevance).all():
        raise NonFiniteError("relevance holds NaN or Inf")
    return relevance


def _choose(request: AllocationRequest, strategy: str) -> Regions:
    """Regions [K, 3] in token order."""
    if strategy != "uniform" and request.tokens >= request.relevance.size:
        return _tiles(np.ones(request.shape, dtype=bool))
    return _STRATEGIES[strategy](request)


def _tiles(chosen: npt.NDArray[np.bool_]) -> Regions:
    """The chosen tiles as regions of level 0, in token order."""
    rows, cols = np.nonzero(chosen)
    return np.stack([np.zeros_like(rows), rows, cols], axis=1)


def _best(worth: Map, count: int, taken: npt.NDArray[np.bool_]) -> None:
    """Add the `count` tiles of highest worth (of equals, the first) to `taken`, in place."""
    ranked = np.where(taken, np.inf, -worth).ravel()
    taken.ravel()[np.argsort(ranked, kind="stable")[:count]] = True


@lru_cache(maxsize=64)
def even_tiles(shape: tuple[int, int], count: int) -> npt.NDArray[np.bool_]:
    """Every n-th tile, n the smallest that gives at most `count` (≥ 1) tiles, the middle one among them: bool [gh,
    gw]."""
    rows, cols = np.indices(shape, sparse=True)
    step = -(-shape[0] * shape[1] // count)
    while True:
        chosen = (cols - shape[1] // 2 + (rows - shape[0] // 2) * round(step * _GOLDEN)) % step == 0
        if chosen.sum() <= count:
            chosen.flags.writeable = False
            return chosen
        step += 1


def _topk(request: AllocationRequest) -> Regions:
    chosen = np.zeros(request.shape, dtype=bool)
    return _tiles(_most_worth(request, chosen))


def _mixed(request: AllocationRequest) -> Regions:
    covering = round(request.coverage * request.tokens)
    shape = request.shape
    chosen = even_tiles(shape, covering).copy() if covering else np.zeros(shape, dtype=bool)
    pairs = _NO_PAIRS if request.lines is None else line_pairs(request.lines)
    return _tiles_and_pairs(request, chosen, pairs) if len(pairs) else _tiles(_most_worth(request, chosen))


PAIR_WORTH = 1.5
"""Worth of two tiles of a line in one token, of one tile: 24 px text is read at 97 % there (benchmarks/README.md)."""


_NO_PAIRS = np.zeros((0, 3), np.int64)


def _tiles_and_pairs(request: AllocationRequest, chosen: npt.NDArray[np.bool_], pairs: Regions) -> Regions:
    """The tiles `chosen` already and those of most worth; of lines, `pairs` of tiles in one token each."""
    single = paint(pairs, np.zeros(len(pairs), bool), request.shape, True)
    regions = np.concatenate([pairs, _tiles(single)])
    matter = region_mean(regions, request.relevance + np.float32(DULL))
    shown = request.memory.previous
    if shown is not None:
        kept = region_pool(regions, (shown == shape_map(regions, request.shape)).astype(np.int32), np.minimum) > 0
        matter = np.where(kept, matter * np.float32(1 + STICKINESS), matter)
    of_pairs = matter[: len(pairs)] * np.float32(PAIR_WORTH)
    worth = np.concatenate(
        [of_pairs, matter[len(pairs) :], 2 * matter[: len(pairs)] - of_pairs]
    )  # the last: of a split
    taken = np.concatenate([region_pool(regions, chosen.astype(np.int32)) > 0, np.zeros(len(pairs), bool)])
    left = max(0, request.tokens - int(taken.sum()))
    exploring = min(request.memory.exploring_tokens(request.tokens), left)
    _best(worth, left - exploring, taken)
    split, taken = taken[len(regions) :], taken[: len(regions)]
    if exploring and request.memory.staleness is not None:
        _best(region_pool(regions, request.memory.staleness, np.maximum), exploring, taken)
    matter[: len(pairs)][split] = np.inf
    extra = int(split.sum()) + max(0, request.tokens - int(taken.sum()) - int(split.sum()))
    return _in_token_order(_pairs_split(regions[taken], matter[taken], extra), request.shape)


def _pairs_split(regions: Regions, worth: Map, count: int) -> Regions:
    """So many pairs, the best first, as two tiles each."""
    pairs = np.flatnonzero(regions[:, 0] > 0)
    best = pairs[np.argsort(-worth[pairs], kind="stable")][:count]
    if not len(best):
        return regions
    first, sides = first_tiles(regions[best]), region_sides(regions[best])
    tiles = np.concatenate([first, first + sides - 1])
    split = np.concatenate([np.zeros((len(tiles), 1), np.int64), tiles], axis=1)
    return np.concatenate([np.delete(regions, best, axis=0), split])


def _in_token_order(regions: Regions, shape: tuple[int, int]) -> Regions:
    first = first_tiles(regions)
    return regions[np.argsort(first[:, 0] * shape[1] + first[:, 1], kind="stable")]


def _most_worth(request: AllocationRequest, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Fill `chosen` up to the budget: by relevance first, then the exploring share by neglect."""
    memory = request.memory
    left = request.tokens - int(chosen.sum())
    exploring = min(memory.exploring_tokens(request.tokens), left)
    worth = request.relevance
    if memory.previous is not None:
        matter = worth + np.float32(DULL)
        worth = np.where(memory.previous == 0, matter * np.float32(1 + STICKINESS), matter)
    _best(worth, left - exploring, chosen)
    if exploring and memory.staleness is not None:
        _best(memory.staleness, exploring, chosen)
    return chosen


def _foveated(request: AllocationRequest) -> Regions:
    top = top_level(request.shape, request.tokens)
    tree = quadtree(request.shape, top) if request.lines is None else line_tree(top, request.lines)
    if tree.roots > request.tokens:
        return _few(request, tree)
    memory = request.memory
    worth = split_worth(tree, request.relevance, memory.previous, STICKINESS)
    split = tree.refine(tree.root(), worth, max(request.tokens - memory.exploring_tokens(request.tokens), tree.roots))
    if memory.staleness is not None:
        split = tree.refine(split, tree.pyramid(memory.staleness, np.maximum), request.tokens)
    return tree.regions[tree.leaves(split)]


def _fixation(request: AllocationRequest) -> Regions:
    tree = quadtree(request.shape, top_level(request.shape, request.tokens))
    if tree.roots > request.tokens:
        return _few(request, tree)
    return fixation_cover(request.shape, request.tokens, fixation_point(request.relevance, request.entropy))[0]


def _few(request: AllocationRequest, tree: CoverTree) -> Regions:
    """A budget too small for any cover: the best regions of the coarsest level."""
    worth = tree.pyramid(request.relevance)[: tree.roots]
    return tree.regions[np.sort(np.argsort(-worth, kind="stable")[: request.tokens])]


def _grid(request: AllocationRequest) -> Regions:
    return _tiles(even_tiles(request.shape, request.tokens))


def _uniform(request: AllocationRequest) -> Regions:
    shape = request.shape
    level = max(level for level in range(LEVELS) if level == 0 or level_count(shape, level) >= request.tokens)
    count = level_count(shape, level)
    wanted = min(request.tokens, count)
    picked = (2 * np.arange(wanted) + 1) * count // (2 * wanted)
    row, col = np.divmod(picked, level_shape(shape, level)[1])
    return np.stack([np.full_like(row, level), row, col], axis=1)


def _random(request: AllocationRequest) -> Regions:
    chosen = np.zeros(request.relevance.size, dtype=bool)
    chosen[np.random.default_rng(request.seed).permutation(chosen.size)[: request.tokens]] = True
    return _tiles(chosen.reshape(request.shape))


_STRATEGIES: dict[str, Callable[[AllocationRequest], Regions]] = {
    "topk": _topk,
    "mixed": _mixed,
    "foveated": _foveated,
    "fixation": _fixation,
    "grid": _grid,
    "uniform": _uniform,
    "random": _random,
}
