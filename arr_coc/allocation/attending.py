"""Strategies that choose regions for a budget of tokens, the guard against pictures without structure, and `Tensions`.

A stream's guard judges the picture, by `picture_structure`. The relevance map is no evidence: a trained scorer smooths
over neighbours and has learned where in a frame things usually are, so it makes structured maps of white noise, and it
may prefer nothing on a page of print. If only a map is given, `map_structure` judges it. Feedback from answers on a
picture overrules its looks.

| strategy | regions |
| --- | --- |
| `topk` | the K most relevant tiles, level 0 |
| `mixed` | level 0: a share (`coverage`) spread evenly, the rest the most relevant tiles |
| `foveated` | a quadtree cover of the whole frame, fine at high relevance; K − 2 tokens or more |
| `fixation` | the same, fine around the place of most relevance and coarser with distance |
| `grid` | every n-th tile, n the smallest that the budget pays, phase fixed |
| `uniform` | K regions of one level, spread evenly: the coarsest level that has as many |
| `random` | K tiles drawn with `seed` |
| `evs` | the K tiles that changed most since the frame shown before (`arr_coc/allocation/evs.py`) |
| `auto` | `topk` if glances are made, `grid` for a void; else `foveated` if the model knows levels and has 64 tokens
or more, else `mixed` |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence

from arr_coc.allocation.evs import changed_tiles
from arr_coc.allocation.text_lines import line_pairs, line_tree
from arr_coc.allocation.warping import structure_or_none
from arr_coc.budget import DEFAULT_BUDGET, DEFAULT_LIMITS, Budget, TokenLimits, tokens_for
from arr_coc.errors import NonFiniteError, OptionError, ShapeError, StrategyError
from arr_coc.texture.covers import (
    DULL,
    CoverTree,
    fixation_cover,
    fixation_point,
    pyramid_means,
    quadtree,
    top_level,
)
from arr_coc.texture.regions import (
    ABSENT,
    first_tiles,
    level_count,
    level_shape,
    paint,
    region_mean,
    region_pool,
    region_sides,
    shape_map,
)
from arr_coc.types import LEVELS, Allocation

VOID_STRUCTURE = 0.25
"""Below this a map has no structure. White noise measures 0.00 ± 0.02 on a 34×60 grid, ± 0.12 on 6×6."""

VOID_RANGE = 0.05
"""A map whose values all lie within this has no structure either, whatever its shape."""

LEAST_TILES = 64
"""Pictures of fewer tiles are not judged: few neighbours prove nothing, and most budgets show all of them."""

CLEAR = 0.35
"""Above every threshold, hysteresis included: nothing else needs to be measured."""

LEAST_RANGES = (0.05, 0.05, 0.05, 0.02, 0.1)
"""Least ranges of red, green, blue, edge magnitude and entropy, between tiles, to count. A blank wall or a slope of
light varies by 0.007, 0.007, 0.007, 0.003 and 0.055 at most, under a sensor's noise of 4 of 255."""

EDGES = 5

LEAST_STEP = 0.04
"""By how much a colour must differ from its neighbours' mean somewhere; slopes and spots of light bend by 0.03."""

LEAST_EDGES = 0.004
"""Least spread of edge magnitude for entropy to count: a steep slope fills more or fewer bins of the histogram, and
has no edges."""

Map = npt.NDArray[np.float32]

_MAP_LEAST = torch.tensor([VOID_RANGE])


def map_structure(relevance: torch.Tensor) -> torch.Tensor:
    """Return the distance of a map [gh, gw] from noise, in [0, 1]: the larger of its coherence and its sparsity.

    Coherence is the mean correlation of horizontal and vertical neighbours (Moran's I at lag one): near 1 for objects
    larger than a tile, 0 for white noise. Sparsity is 2·H − 1 with Hoyer's H (2004) of what exceeds the median: 1 for
    a single tile that stands out, below 0 for noise of any usual distribution. A map whose range is less than
    `VOID_RANGE` measures 0. A scalar on the map's device.
    """
    if relevance.numel() < 4:
        return relevance.new_zeros(())
    if relevance.is_cpu and (compiled := structure_or_none(relevance, None, _MAP_LEAST, (0, 0, 1))) is not None:
        return compiled
    maps = relevance[None]
    structure = torch.maximum(_coherence(maps), _sparsity(maps)).clamp(0, 1)
    return torch.where(_ranges(maps) < VOID_RANGE, 0.0, structure)[0]


def picture_structure(appearance: torch.Tensor) -> torch.Tensor:
    """Return the distance of a picture from a void (blank, a slope of light, white noise, drops all over), in [0, 1].

    `appearance` float32 [7, gh, gw]: red, green, blue, Sobel gx, gy and magnitude, and entropy of each tile, all of
    them absolute. Of each of them but gx and gy, a slope over the frame (a surface of second order) is taken away; the
    largest of their structures counts, but for a colour that only bends, and for entropy without edges. 1 for fewer
    than `LEAST_TILES` tiles. Of a picture above `CLEAR`, not all may be measured. A scalar on the picture's device.
    """
    rows, cols = appearance.shape[1:]
    if rows * cols < LEAST_TILES:
        return appearance.new_ones(())
    slopes, least = _surfaces(rows, cols, appearance.device)
    limits = LEAST_STEP, LEAST_EDGES, CLEAR
    if appearance.is_cpu and (compiled := structure_or_none(appearance, slopes, least, limits)) is not None:
        return compiled
    values = torch.cat([appearance[:3], appearance[EDGES:]]).flatten(1)
    rest = (values - values @ slopes @ slopes.T).unflatten(1, (rows, cols))
    counts = (_ranges(rest) >= least) & ~_are_light(appearance)
    structure = torch.where(counts, _coherence(rest), 0.0)
    if not structure.is_cpu or structure.max() < CLEAR:  # a device is not asked, and measures both
        structure = torch.where(counts, torch.maximum(structure, _sparsity(rest.abs())), 0.0)
    return structure.max().clamp(0, 1)


def _are_light(appearance: torch.Tensor) -> torch.Tensor:
    """True if slopes of light explain how red, green, blue, edge magnitude and entropy vary: bool [5]."""
    light = torch.zeros(5, dtype=torch.bool, device=appearance.device)
    colours = appearance[:3]
    if min(colours.shape[1:]) >= 3:  # a strip has no tile with neighbours all around
        around = colours[:, :-2, 1:-1] + colours[:, 2:, 1:-1] + colours[:, 1:-1, :-2] + colours[:, 1:-1, 2:]
        light[:3] = (colours[:, 1:-1, 1:-1] - around / 4).abs().amax(dim=(1, 2)) < LEAST_STEP
    light[4] = _ranges(appearance[EDGES][None])[0] < LEAST_EDGES
    return light


@lru_cache(maxsize=8)
def _surfaces(rows: int, cols: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """An orthonormal basis of the surfaces of second order over a grid: float32 [rows · cols, 6]; `LEAST_RANGES`."""
    y, x = (axis.ravel() for axis in np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, cols), indexing="ij"))
    basis = np.linalg.qr(np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1))[0]
    return torch.from_numpy(np.ascontiguousarray(basis, np.float32)).to(device), torch.tensor(LEAST_RANGES).to(device)


def _ranges(maps: torch.Tensor) -> torch.Tensor:
    flat = maps.flatten(1)
    return flat.amax(dim=1) - flat.amin(dim=1)


def _coherence(maps: torch.Tensor) -> torch.Tensor:
    deviation = maps - maps.mean(dim=(1, 2), keepdim=True)
    down = deviation[:, 1:] * deviation[:, :-1]
    across = deviation[:, :, 1:] * deviation[:, :, :-1]
    pairs = down[0].numel() + across[0].numel()
    tiles = maps[0].numel()
    spread = deviation.square().sum(dim=(1, 2))
    share = (down.sum(dim=(1, 2)) + across.sum(dim=(1, 2))) / pairs * tiles / spread
    return torch.where(spread > 0, share, 0.0)


def _sparsity(maps: torch.Tensor) -> torch.Tensor:
    values = maps.flatten(1)
    tiles = maps[0].numel()
    median = (values.kthvalue((tiles + 1) // 2, dim=1).values + values.kthvalue(tiles // 2 + 1, dim=1).values) / 2
    above = (values - median[:, None]).clamp(min=0)
    norm = above.square().sum(dim=1).sqrt()
    root = tiles**0.5
    return torch.where(norm > 0, 2 * (root - above.sum(dim=1) / norm) / (root - 1) - 1, 0.0)


Strategy = Literal["auto", "topk", "mixed", "foveated", "fixation", "grid", "uniform", "random", "evs"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)

STRATEGIES_ON_DEVICE = tuple(name for name in STRATEGIES if name not in ("fixation", "evs"))
"""Strategies that a device can choose by. The host has to know the place that `fixation` follows, and keeps the picture
that `evs` compares with."""

STICKINESS = 0.25
"""Bonus of a region that was shown (as finely) before, so that near-equals do not take turns."""

COVER_TOKENS = 64
"""Budget from which `auto` covers the whole frame. With fewer tokens, a cover leaves hardly a tile sharp, and the
bundled model was right up to 1.8 times as often with `mixed`, on scenes that it had not seen (training/README.md)."""

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
    `change`: by how much each tile changed since the frame that was shown before, float32 [gh, gw]; for `evs`.
    """

    previous: torch.Tensor | None = None
    staleness: torch.Tensor | None = None
    explore: float = 0.0
    change: torch.Tensor | None = None

    def exploring_tokens(self, tokens: int) -> int:
        if self.staleness is None:
            return 0
        return round(self.explore * tokens)


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """One frame's worth of choosing: a finite map, a budget in tokens, and the strategy's own settings.

    `entropy` float32 [gh, gw], that of each tile, if known; `lines` bool [2, gh, gw], the tiles of lines of text along
    rows and along columns (`line_tiles`), if wide and tall regions may be chosen. `within` bool [gh, gw]: the tiles
    that the question is about; every region shows some of them. Maps lie on one device; `lines`, `within` and the
    strategy `fixation` are of host memory.
    """

    relevance: torch.Tensor
    tokens: int
    coverage: float
    seed: int
    memory: AllocationHistory
    entropy: torch.Tensor | None = None
    lines: npt.NDArray[np.bool_] | None = None
    within: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self.relevance.shape
        return rows, cols


@dataclass(frozen=True, slots=True)
class RegionChoice:
    """The regions of one frame, on the device of its relevance.

    `regions` int64 [K, 3] in token order, `relevance` float32 [K], mean over a region's tiles; `levels` int8 [gh, gw],
    the shape of the region that shows each tile, −1 if none does. A device does not say how many regions there are:
    K is then what was planned, and `mask` bool [K] is False for the padding behind them.
    """

    regions: torch.Tensor
    mask: torch.Tensor
    relevance: torch.Tensor
    levels: torch.Tensor

    def or_else(self, other: RegionChoice, condition: torch.Tensor) -> RegionChoice:
        """This choice, or `other` if `condition` (a scalar bool) is False."""
        count = max(len(self.mask), len(other.mask))
        choice = self._padded(count)
        fallback = other._padded(count)
        return RegionChoice(
            torch.where(condition, choice.regions, fallback.regions),
            torch.where(condition, choice.mask, fallback.mask),
            torch.where(condition, choice.relevance, fallback.relevance),
            torch.where(condition, choice.levels, fallback.levels),
        )

    def _padded(self, count: int) -> RegionChoice:
        padding = count - len(self.mask)
        return RegionChoice(
            torch.cat([self.regions, self.regions.new_zeros(padding, 3)]),
            torch.cat([self.mask, self.mask.new_zeros(padding)]),
            torch.cat([self.relevance, self.relevance.new_zeros(padding)]),
            self.levels,
        )


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
    """Choose the regions that a budget of tokens buys. The same inputs give the same regions.

    Args:
        relevance: [gh, gw] or [B, gh, gw], a tensor or a NumPy array; finite, usually in [0, 1].
        budget: As `arr_coc.budget` has it, or one for each frame of the batch, clamped to the number of tiles.
        strategy: Name of the way to spend the budget.
        coverage: Share of the budget that `mixed` spreads evenly, in [0, 1].
        seed: Of strategies that draw.
        levels: Whether the model knows coarse tokens; for the strategy `auto`.
        memory: Earlier choices of the stream.
        limits: Of the budgets "auto" and "adaptive".

    Returns:
        Regions [K, 3], relevance [K] (mean over the region's tiles) and mask [K] in token order, on the CPU. With a
        batch dimension all of them are [B, K, …], K the largest of the batch, padded with masked zeros.

    Raises:
        BudgetError, StrategyError, ShapeError: A wrong argument.
        OptionError: A `coverage` outside [0, 1].
        NonFiniteError: NaN or Inf in `relevance`.
    """
    if not 0 <= coverage <= 1:
        raise OptionError(f"coverage is a share of the budget, in [0, 1], got {coverage!r}")
    check_strategy(strategy)
    maps = _checked_map(relevance).detach().to("cpu", torch.float32).contiguous()
    frames = maps[None] if maps.ndim == 2 else maps
    history = memory or AllocationHistory()
    maps_before = (history.previous, history.staleness, history.change)
    previous, stale, change = (None if array is None else torch.as_tensor(array) for array in maps_before)
    memory = AllocationHistory(previous, stale, history.explore, change)
    if isinstance(budget, Sequence) and not isinstance(budget, str):
        budgets = budget
    else:
        budgets = [budget] * len(frames)
    if len(budgets) != len(frames):
        raise ShapeError(f"{len(budgets)} budgets were given for {len(frames)} relevance maps")
    allocations = []
    for frame, frame_budget in zip(frames, budgets, strict=True):
        tokens = tokens_for(frame_budget, frame, limits)
        void = strategy == "auto" and bool(map_structure(frame) < VOID_STRUCTURE)
        request = AllocationRequest(frame, tokens, coverage, seed, memory)
        allocations.append(allocate_frame(request, resolve_strategy(strategy, void, tokens, levels)))
    if maps.ndim == 2:
        return allocations[0]
    return stack_allocations(allocations)


def allocate_frame(request: AllocationRequest, strategy: str) -> Allocation:
    """Choose one frame's regions, in host memory, by a strategy that is not `auto`; nothing is checked."""
    choice = choose(request, strategy)
    return Allocation(choice.regions, choice.relevance, choice.mask)


def choose(request: AllocationRequest, strategy: str) -> RegionChoice:
    """Choose one frame's regions by a strategy that is not `auto`; nothing is checked."""
    if request.within is not None:
        return _chosen_within(request, request.within, strategy)
    if strategy != "uniform" and request.tokens >= request.relevance.numel():
        return _of_tiles(request, torch.ones_like(request.relevance, dtype=torch.bool), request.relevance.numel())
    return _STRATEGIES[strategy](request)


def _chosen_within(request: AllocationRequest, within: torch.Tensor, strategy: str) -> RegionChoice:
    """Choose regions that show some of the tiles `within`: all of these if the budget pays for them. Else the strategy
    chooses from the whole frame with so much more that what lies within costs the budget, or hardly less."""
    count = int(within.sum())
    flags = within.numpy()
    if count <= request.tokens:
        return _of_tiles(request, within, count)
    best: Regions = np.zeros((0, 3), np.int64)
    tokens = least = request.tokens
    most = request.relevance.numel()
    while least < most:
        regions = choose(replace(request, within=None, tokens=tokens), strategy).regions.numpy()
        regions = regions[region_pool(regions, flags, np.logical_or)]
        if len(regions) > request.tokens:
            most = tokens
        else:
            best = regions if len(regions) >= len(best) else best
            least = tokens + 1
        tokens = (least + most) // 2
    if not len(best):
        worth = torch.where(within, request.relevance, -math.inf)
        best_tiles = _best(worth, request.tokens, torch.zeros_like(within))
        return _of_tiles(request, best_tiles, request.tokens)
    return _of_regions(request, best)


def check_strategy(strategy: str) -> None:
    """Raise StrategyError, naming the strategies that there are."""
    if strategy not in STRATEGIES:
        raise StrategyError(f"unknown strategy {strategy!r}; there are {', '.join(STRATEGIES)}")


def resolve_strategy(strategy: str, void: bool, tokens: int, levels: bool, glances: bool = False) -> str:
    """Return the strategy that `auto` means.

    Args:
        strategy: Name; returned as it is, unless it is `auto`.
        void: Whether the picture has no structure.
        tokens: Tokens to spend.
        levels: Whether the model knows coarse tokens.
        glances: Whether the question chooses from the first frame on, so that coverage is needless.
    """
    if strategy != "auto":
        return strategy
    if void:
        return "grid"
    if glances:
        return "topk"
    if levels and tokens >= COVER_TOKENS:
        return "foveated"
    return "mixed"


def stack_allocations(frames: list[Allocation]) -> Allocation:
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
        if isinstance(relevance, torch.Tensor):
            type_name = str(relevance.dtype)
        else:
            type_name = type(relevance).__name__
        raise ShapeError(f"relevance must be a tensor or an array of real numbers, got {type_name}")
    if relevance.ndim not in (2, 3) or 0 in relevance.shape:
        raise ShapeError(f"relevance must be [gh, gw] or [B, gh, gw], got {list(relevance.shape)}")
    if not torch.isfinite(relevance).all():
        raise NonFiniteError("relevance holds NaN or Inf")
    return relevance


def _first(mask: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the True entries of `mask` bool [N], in order; on a device, which is not asked how many there are,
    always `count` of them: others behind."""
    if mask.is_cpu:
        return mask.nonzero()[:, 0]
    return (~mask).to(torch.uint8).argsort(stable=True)[:count]


def _of_tiles(request: AllocationRequest, tiles: torch.Tensor, count: int) -> RegionChoice:
    """The `count` tiles of the mask `tiles` bool [gh, gw], in token order."""
    flat = tiles.flatten()
    cols = request.shape[1]
    index = _first(flat, count)
    regions = torch.stack([torch.zeros_like(index), index // cols, index % cols], dim=1)
    levels = torch.where(tiles, 0, ABSENT).to(torch.int8)
    return RegionChoice(regions, flat[index], request.relevance.flatten()[index], levels)


def _of_regions(request: AllocationRequest, regions: Regions) -> RegionChoice:
    """Regions [K, 3] in token order that the host chose."""
    return RegionChoice(
        torch.from_numpy(regions),
        torch.ones(len(regions), dtype=torch.bool),
        torch.from_numpy(region_mean(regions, request.relevance.numpy())),
        torch.from_numpy(shape_map(regions, request.shape)),
    )


def _best(worth: torch.Tensor, count: int, selection: torch.Tensor) -> torch.Tensor:
    """`selection` with the `count` tiles of highest worth (of equals, the first) beside."""
    order = torch.where(selection, math.inf, -worth).flatten().argsort(stable=True)[:count]
    return selection.flatten().scatter(0, order, True).reshape(selection.shape)


@lru_cache(maxsize=64)
def even_tiles(shape: tuple[int, int], count: int) -> npt.NDArray[np.bool_]:
    """Every n-th tile, n the smallest that gives at most `count` (≥ 1) tiles, the middle one among them: bool [gh,
    gw]."""
    rows, cols = np.indices(shape, sparse=True)
    step = -(-shape[0] * shape[1] // count)
    while True:
        tiles = (cols - shape[1] // 2 + (rows - shape[0] // 2) * round(step * _GOLDEN)) % step == 0
        if tiles.sum() <= count:
            tiles.flags.writeable = False
            return tiles
        step += 1


@lru_cache(maxsize=16)
def _even_on(shape: tuple[int, int], count: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(even_tiles(shape, count).copy()).to(device)


def _topk(request: AllocationRequest) -> RegionChoice:
    empty = torch.zeros_like(request.relevance, dtype=torch.bool)
    return _of_tiles(request, _most_worth(request, empty, 0), request.tokens)


def _mixed(request: AllocationRequest) -> RegionChoice:
    covering = round(request.coverage * request.tokens)
    if covering:
        tiles = even_tiles(request.shape, covering)
    else:
        tiles = np.zeros(request.shape, bool)
    if request.lines is None:
        pairs = _NO_PAIRS
    else:
        pairs = line_pairs(request.lines)
    if len(pairs):
        return _of_regions(request, _tiles_and_pairs(request, tiles, pairs))
    if not covering:
        return _topk(request)
    device_tiles = _even_on(request.shape, covering, request.relevance.device)
    return _of_tiles(request, _most_worth(request, device_tiles, int(tiles.sum())), request.tokens)


_NO_PAIRS = np.zeros((0, 3), np.int64)


def _tiles_and_pairs(request: AllocationRequest, tiles: npt.NDArray[np.bool_], pairs: Regions) -> Regions:
    """The tiles of the mask `tiles` and those of most worth; of lines, `pairs` of tiles in one token each."""
    single = np.argwhere(paint(pairs, np.zeros(len(pairs), bool), request.shape, True))
    regions = np.concatenate([pairs, np.insert(single, 0, 0, axis=1)])
    matter = region_mean(regions, request.relevance.numpy() + np.float32(DULL))
    if request.memory.previous is not None:
        same_shape = request.memory.previous.numpy() == shape_map(regions, request.shape)
        is_stable = region_pool(regions, same_shape.astype(np.int32), np.minimum) > 0
        matter = np.where(is_stable, matter * np.float32(1 + STICKINESS), matter)
    # worth of two tiles of a line in one token, of one tile: 24 px text is read at 97 % there (benchmarks/README.md).
    of_pairs = matter[: len(pairs)] * np.float32(1.5)
    worth = np.concatenate(
        [of_pairs, matter[len(pairs) :], 2 * matter[: len(pairs)] - of_pairs]
    )  # the last: of a split
    selection = np.concatenate([region_pool(regions, tiles.astype(np.int32)) > 0, np.zeros(len(pairs), bool)])
    remaining_tokens = max(0, request.tokens - int(selection.sum()))
    exploring = min(request.memory.exploring_tokens(request.tokens), remaining_tokens)
    selection = _best(torch.from_numpy(worth), remaining_tokens - exploring, torch.from_numpy(selection)).numpy()
    split = selection[len(regions) :]
    selection = selection[: len(regions)]
    if exploring and request.memory.staleness is not None:
        stale = torch.from_numpy(region_pool(regions, request.memory.staleness.numpy(), np.maximum))
        selection = _best(stale, exploring, torch.from_numpy(selection)).numpy()
    matter[: len(pairs)][split] = np.inf
    extra = int(split.sum()) + max(0, request.tokens - int(selection.sum()) - int(split.sum()))
    return _in_token_order(_pairs_split(regions[selection], matter[selection], extra), request.shape)


def _pairs_split(regions: Regions, worth: Map, count: int) -> Regions:
    """So many pairs, the best first, as two tiles each."""
    pairs = np.flatnonzero(regions[:, 0] > 0)
    best = pairs[np.argsort(-worth[pairs], kind="stable")][:count]
    if not len(best):
        return regions
    first = first_tiles(regions[best])
    sides = region_sides(regions[best])
    tiles = np.concatenate([first, first + sides - 1])
    split = np.concatenate([np.zeros((len(tiles), 1), np.int64), tiles], axis=1)
    return np.concatenate([np.delete(regions, best, axis=0), split])


def _in_token_order(regions: Regions, shape: tuple[int, int]) -> Regions:
    first = first_tiles(regions)
    return regions[np.argsort(first[:, 0] * shape[1] + first[:, 1], kind="stable")]


def _most_worth(request: AllocationRequest, selection: torch.Tensor, spent_tokens: int) -> torch.Tensor:
    """Fill `selection` up to the budget less `spent_tokens`: by relevance, then the exploring share by neglect."""
    memory = request.memory
    remaining_tokens = request.tokens - spent_tokens
    exploring = min(memory.exploring_tokens(request.tokens), remaining_tokens)
    worth = request.relevance
    if memory.previous is not None:
        matter = worth + DULL
        worth = torch.where(memory.previous == 0, matter * (1 + STICKINESS), matter)
    selection = _best(worth, remaining_tokens - exploring, selection)
    if exploring and memory.staleness is not None:
        selection = _best(memory.staleness, exploring, selection)
    return selection


def _foveated(request: AllocationRequest) -> RegionChoice:
    top = top_level(request.shape, request.tokens)
    memory = request.memory
    tree: CoverTree = quadtree(request.shape, top, request.relevance.device)
    if request.lines is not None:
        tree = line_tree(top, request.lines)
    if tree.roots > request.tokens:
        return _few(request, tree)
    worth = tree.split_worth(request.relevance, memory.previous, STICKINESS)
    split = tree.refine(tree.root(), worth, max(request.tokens - memory.exploring_tokens(request.tokens), tree.roots))
    if memory.staleness is not None:
        split = tree.refine(split, tree.pyramid(memory.staleness, largest=True), request.tokens)
    leaf = tree.are_leaves(split)
    first = _first(leaf, request.tokens)
    mask = leaf.index_select(0, first)
    index = tree.by_place.index_select(0, first)
    regions = tree.places.index_select(0, index) * mask[:, None]
    means = tree.means(request.relevance).index_select(0, index).masked_fill(~mask, 0)
    return RegionChoice(regions, mask, means, tree.shapes(split))


def _fixation(request: AllocationRequest) -> RegionChoice:
    tree = quadtree(request.shape, top_level(request.shape, request.tokens))
    if tree.roots > request.tokens:
        return _few(request, tree)
    if request.entropy is None:
        entropy = None
    else:
        entropy = request.entropy.numpy()
    place = fixation_point(request.relevance.numpy(), entropy)
    return _of_regions(request, fixation_cover(request.shape, request.tokens, place)[0])


def _few(request: AllocationRequest, tree: CoverTree) -> RegionChoice:
    """A budget too small for any cover: the best regions of the coarsest level."""
    worth = tree.pyramid(request.relevance)[: tree.roots]
    best = (-worth).argsort(stable=True)[: request.tokens].sort().values
    top, (rows, cols) = int(tree.regions[0, 0]), request.shape
    row, col = (torch.arange(side, device=best.device) >> top for side in (rows, cols))
    visible_roots = torch.zeros(tree.roots, dtype=torch.bool, device=best.device).scatter(0, best, True)
    levels = torch.where(visible_roots[row[:, None] * level_shape((rows, cols), top)[1] + col], top, ABSENT).to(
        torch.int8
    )
    mask = torch.ones_like(best, dtype=torch.bool)
    return RegionChoice(tree.places[best], mask, tree.means(request.relevance)[best], levels)


def _grid(request: AllocationRequest) -> RegionChoice:
    return _of_table(request, "grid")


def _uniform(request: AllocationRequest) -> RegionChoice:
    return _of_table(request, "uniform")


def _random(request: AllocationRequest) -> RegionChoice:
    return _of_table(request, "random")


def _evs(request: AllocationRequest) -> RegionChoice:
    if request.memory.change is None:
        change = None
    else:
        change = request.memory.change.numpy()
    tiles = changed_tiles(change, request.shape, request.tokens)
    return _of_tiles(request, torch.from_numpy(tiles), request.tokens)


def _of_table(request: AllocationRequest, strategy: str) -> RegionChoice:
    """A strategy that looks at no map: its regions are of one level, and the host chooses them once for all frames."""
    seed = request.seed if strategy == "random" else 0
    regions, levels, level = _table_of(strategy, request.shape, request.tokens, seed, request.relevance.device)
    means = pyramid_means(request.relevance, level)[-1][regions[:, 1], regions[:, 2]]
    return RegionChoice(regions, torch.ones_like(means, dtype=torch.bool), means, levels)


@lru_cache(maxsize=16)
def _table_of(
    strategy: str, shape: tuple[int, int], tokens: int, seed: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Regions [K, 3], the map of their shapes, and their level."""
    level = 0
    if strategy == "grid":
        rows, cols = np.nonzero(even_tiles(shape, tokens))
    elif strategy == "random":
        indices = np.sort(np.random.default_rng(seed).permutation(shape[0] * shape[1])[:tokens])
        rows, cols = np.divmod(indices, shape[1])
    else:
        level = max(level for level in range(LEVELS) if level == 0 or level_count(shape, level) >= tokens)
        count = level_count(shape, level)
        samples = min(tokens, count)
        indices = (2 * np.arange(samples) + 1) * count // (2 * samples)
        rows, cols = np.divmod(indices, level_shape(shape, level)[1])
    regions = np.stack([np.full_like(rows, level), rows, cols], axis=1)
    return torch.from_numpy(regions).to(device), torch.from_numpy(shape_map(regions, shape)).to(device), level


_STRATEGIES: dict[str, Callable[[AllocationRequest], RegionChoice]] = {
    "topk": _topk,
    "mixed": _mixed,
    "foveated": _foveated,
    "fixation": _fixation,
    "grid": _grid,
    "uniform": _uniform,
    "random": _random,
    "evs": _evs,
}
