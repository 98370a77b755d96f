"""Strategies that choose the regions of a frame: each takes a request and returns a choice.

| strategy | regions |
| --- | --- |
| `topk` | the K most relevant tiles, level 0 |
| `mixed` | level 0: a share (`coverage`) spread evenly, the rest the most relevant tiles |
| `foveated` | a quadtree cover of the whole frame, fine at high relevance; K − 2 tokens or more |
| `fixation` | the same, fine around the place of most relevance and coarser with distance |
| `grid` | every n-th tile, n the smallest that the budget pays, phase fixed |
| `uniform` | K regions of one level, spread evenly: the coarsest level that has as many |
| `random` | K tiles drawn with `seed` |
| `evs` | the K tiles that changed most since the frame shown before (`evs.py`) |
| `querystream` | the K most relevant of the tiles that differ from what was shown (`querystream.py`) |
| `auto` | `topk`, and `grid` for a picture without structure |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.evs import changed_tiles
from arr_coc.allocation.querystream import HISTORY_WEIGHT, relevant_news
from arr_coc.allocation.text_lines import line_pairs, line_tree
from arr_coc.errors import OptionError, StrategyError
from arr_coc.texture.covers import (
    DULL,
    CoverTree,
    fixation_cover,
    fixation_point,
    magnified_cover,
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
from arr_coc.types import LEVELS

Strategy = Literal["auto", "topk", "mixed", "foveated", "fixation", "grid", "uniform", "random", "evs", "querystream"]

STRATEGIES: tuple[str, ...] = get_args(Strategy)

COMPARING = {"evs": 1.0, "querystream": HISTORY_WEIGHT}
"""Strategies that compare a frame with those shown before, and the weight of one of these in what is compared with."""

STRATEGIES_ON_DEVICE = tuple(name for name in STRATEGIES if name != "fixation" and name not in COMPARING)
"""Strategies that a device can choose by. The host has to know the place that `fixation` follows, and keeps the picture
that frames are compared with."""

Map = npt.NDArray[np.float32]

Regions = npt.NDArray[np.int64]

STICKINESS = 0.25
"""Bonus of a region that was shown (as finely) before, so that near-equals do not take turns."""


@dataclass(frozen=True, slots=True)
class AllocationHistory:
    """Input of an allocation from earlier frames; all of it optional.

    `previous`: the level map that was shown last, carried along with motion, int8 [gh, gw]. `staleness`: how much each
    tile deserves a look for its own sake, float32 [gh, gw]. `explore`: share of the budget that goes by `staleness`.
    `change`: by how much each tile changed since the frame that was shown before, or differs from a mean of those
    shown, float32 [gh, gw]; for `evs` and `querystream`.
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
class Magnification:
    """Cortical magnification of the strategy `fixation`: a pixel at distance e from the fixation, in frame widths, has
    `M0`/(e + `e0`) texels, as in `magnified_cover`. The budget may lower M0. Raises OptionError for values that are
    not above 0."""

    e0: float
    M0: float = math.inf

    def __post_init__(self) -> None:
        for name in ("e0", "M0"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name} must be above 0, got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """One frame's worth of choosing: a finite map, a budget in tokens, and the strategy's own settings.

    `entropy` float32 [gh, gw], that of each tile, if known; `lines` bool [2, gh, gw], the tiles of lines of text along
    rows and along columns (`line_tiles`), if wide and tall regions may be chosen. `within` bool [gh, gw]: the tiles
    that the question is about; every region shows some of them. `magnification` is that of `fixation`; None: full
    detail just at the fixation, which falls off as slowly as the budget allows. Maps lie on one device; `lines`,
    `within` and the strategy `fixation` are of host memory.
    """

    relevance: torch.Tensor
    tokens: int
    coverage: float
    seed: int
    memory: AllocationHistory
    entropy: torch.Tensor | None = None
    lines: npt.NDArray[np.bool_] | None = None
    within: torch.Tensor | None = None
    magnification: Magnification | None = None

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


def first_true(mask: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the True entries of `mask` bool [N], in order; on a device, which is not asked how many
    there are, always `count` of them: others behind."""
    if mask.is_cpu:
        return mask.nonzero()[:, 0]
    return (~mask).to(torch.uint8).argsort(stable=True)[:count]


def of_tiles(request: AllocationRequest, tiles: torch.Tensor, count: int) -> RegionChoice:
    """Return the `count` tiles of the mask `tiles` bool [gh, gw], in token order."""
    flat = tiles.flatten()
    cols = request.shape[1]
    index = first_true(flat, count)
    regions = torch.stack([torch.zeros_like(index), index // cols, index % cols], dim=1)
    levels = torch.where(tiles, 0, ABSENT).to(torch.int8)
    return RegionChoice(regions, flat[index], request.relevance.flatten()[index], levels)


def of_regions(request: AllocationRequest, regions: Regions) -> RegionChoice:
    """Return the regions [K, 3] in token order that the host chose."""
    return RegionChoice(
        torch.from_numpy(regions),
        torch.ones(len(regions), dtype=torch.bool),
        torch.from_numpy(region_mean(regions, request.relevance.numpy())),
        torch.from_numpy(shape_map(regions, request.shape)),
    )


def best_tiles(worth: torch.Tensor, count: int, selection: torch.Tensor) -> torch.Tensor:
    """`selection` with the `count` tiles of highest worth (of equals, the first) beside."""
    order = torch.where(selection, math.inf, -worth).flatten().argsort(stable=True)[:count]
    return selection.flatten().scatter(0, order, True).reshape(selection.shape)


def choose(request: AllocationRequest, strategy: str) -> RegionChoice:
    """Choose one frame's regions by a strategy that is not `auto`; nothing is checked."""
    if request.within is not None:
        return _chosen_within(request, request.within, strategy)
    if strategy != "uniform" and request.tokens >= request.relevance.numel():
        return of_tiles(request, torch.ones_like(request.relevance, dtype=torch.bool), request.relevance.numel())
    return _STRATEGIES[strategy](request)


def _chosen_within(request: AllocationRequest, within: torch.Tensor, strategy: str) -> RegionChoice:
    """Choose regions that show some of the tiles `within`: all of these if the budget pays for them. Else the strategy
    chooses from the whole frame with so much more that what lies within costs the budget, or hardly less."""
    count = int(within.sum())
    flags = within.numpy()
    if count <= request.tokens:
        return of_tiles(request, within, count)
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
        tiles = best_tiles(worth, request.tokens, torch.zeros_like(within))
        return of_tiles(request, tiles, request.tokens)
    return of_regions(request, best)


def check_strategy(strategy: str) -> None:
    """Raise StrategyError, naming the strategies that there are."""
    if strategy not in STRATEGIES:
        raise StrategyError(f"unknown strategy {strategy!r}; there are {', '.join(STRATEGIES)}")


def resolve_strategy(strategy: str, void: bool) -> str:
    """Return the strategy that `auto` means for a picture, which is a `void` if it has no structure; others as they
    are.

    `topk`, because neither covering the frame nor an even share brought more right answers on scenes of two sets of
    seeds (evaluation/README.md). What it leaves out is shown later, by the exploring share.
    """
    if strategy != "auto":
        return strategy
    return "grid" if void else "topk"


def topk(request: AllocationRequest) -> RegionChoice:
    return _evenly_and_best(request, 0)


def mixed(request: AllocationRequest) -> RegionChoice:
    return _evenly_and_best(request, round(request.coverage * request.tokens))


def _evenly_and_best(request: AllocationRequest, covering: int) -> RegionChoice:
    """Return so many tiles spread evenly, and the most relevant ones; those of lines of text by twos, if the model
    knows that."""
    tiles = even_tiles(request.shape, covering) if covering else np.zeros(request.shape, bool)
    pairs = _NO_PAIRS if request.lines is None else line_pairs(request.lines)
    if len(pairs):
        return of_regions(request, _tiles_and_pairs(request, tiles, pairs))
    if covering:
        device_tiles = even_on(request.shape, covering, request.relevance.device)
    else:
        device_tiles = torch.zeros_like(request.relevance, dtype=torch.bool)
    return of_tiles(request, _most_worth(request, device_tiles, int(tiles.sum())), request.tokens)


_NO_PAIRS = np.zeros((0, 3), np.int64)


def _tiles_and_pairs(request: AllocationRequest, tiles: npt.NDArray[np.bool_], pairs: Regions) -> Regions:
    """Return the tiles of the mask `tiles` and those of most worth; of lines, `pairs` of tiles in one token each."""
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
    selection = best_tiles(torch.from_numpy(worth), remaining_tokens - exploring, torch.from_numpy(selection)).numpy()
    split = selection[len(regions) :]
    selection = selection[: len(regions)]
    if exploring and request.memory.staleness is not None:
        stale = torch.from_numpy(region_pool(regions, request.memory.staleness.numpy(), np.maximum))
        selection = best_tiles(stale, exploring, torch.from_numpy(selection)).numpy()
    matter[: len(pairs)][split] = np.inf
    extra = int(split.sum()) + max(0, request.tokens - int(selection.sum()) - int(split.sum()))
    split_regions = _pairs_split(regions[selection], matter[selection], extra)
    first = first_tiles(split_regions)  # token order
    return split_regions[np.argsort(first[:, 0] * request.shape[1] + first[:, 1], kind="stable")]


def _pairs_split(regions: Regions, worth: npt.NDArray[np.float32], count: int) -> Regions:
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


def _most_worth(request: AllocationRequest, selection: torch.Tensor, spent_tokens: int) -> torch.Tensor:
    """Fill `selection` up to the budget less `spent_tokens`: by relevance, then the exploring share by neglect."""
    memory = request.memory
    remaining_tokens = request.tokens - spent_tokens
    exploring = min(memory.exploring_tokens(request.tokens), remaining_tokens)
    worth = request.relevance
    if memory.previous is not None:
        matter = worth + DULL
        worth = torch.where(memory.previous == 0, matter * (1 + STICKINESS), matter)
    selection = best_tiles(worth, remaining_tokens - exploring, selection)
    if exploring and memory.staleness is not None:
        selection = best_tiles(memory.staleness, exploring, selection)
    return selection


def foveated(request: AllocationRequest) -> RegionChoice:
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
    first = first_true(leaf, request.tokens)
    mask = leaf.index_select(0, first)
    index = tree.by_place.index_select(0, first)
    regions = tree.places.index_select(0, index) * mask[:, None]
    means = tree.means(request.relevance).index_select(0, index).masked_fill(~mask, 0)
    return RegionChoice(regions, mask, means, tree.shapes(split))


def fixation(request: AllocationRequest) -> RegionChoice:
    tree = quadtree(request.shape, top_level(request.shape, request.tokens))
    if tree.roots > request.tokens:
        return _few(request, tree)
    if request.entropy is None:
        entropy = None
    else:
        entropy = request.entropy.numpy()
    place = fixation_point(request.relevance.numpy(), entropy)
    magnification = request.magnification
    if magnification is None:
        regions, _ = fixation_cover(request.shape, request.tokens, place)
    else:
        regions, _ = magnified_cover(request.shape, request.tokens, place, magnification.e0, magnification.M0)
    return of_regions(request, regions)


def _few(request: AllocationRequest, tree: CoverTree) -> RegionChoice:
    """Choose the best regions of the coarsest level, for a budget that is too small for any cover."""
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


_GOLDEN = 0.381966  # 1 − 1/φ: successive rows of the grid are shifted by this share of the step, so it has no stripes


@lru_cache(maxsize=64)
def even_tiles(shape: tuple[int, int], count: int) -> npt.NDArray[np.bool_]:
    """Return every n-th tile, n the smallest that gives at most `count` (≥ 1) tiles, the middle one among them: bool
    [gh, gw]."""
    rows, cols = np.indices(shape, sparse=True)
    step = -(-shape[0] * shape[1] // count)
    while True:
        tiles = (cols - shape[1] // 2 + (rows - shape[0] // 2) * round(step * _GOLDEN)) % step == 0
        if tiles.sum() <= count:
            tiles.flags.writeable = False
            return tiles
        step += 1


@lru_cache(maxsize=16)
def even_on(shape: tuple[int, int], count: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(even_tiles(shape, count).copy()).to(device)


def grid(request: AllocationRequest) -> RegionChoice:
    return _of_table(request, "grid")


def uniform(request: AllocationRequest) -> RegionChoice:
    return _of_table(request, "uniform")


def random(request: AllocationRequest) -> RegionChoice:
    return _of_table(request, "random")


def _of_table(request: AllocationRequest, strategy: str) -> RegionChoice:
    """Choose by a strategy that looks at no map: its regions are of one level, and chosen on the host once."""
    seed = request.seed if strategy == "random" else 0
    regions, levels, level = _table_of(strategy, request.shape, request.tokens, seed, request.relevance.device)
    means = pyramid_means(request.relevance, level)[-1][regions[:, 1], regions[:, 2]]
    return RegionChoice(regions, torch.ones_like(means, dtype=torch.bool), means, levels)


@lru_cache(maxsize=16)
def _table_of(
    strategy: str, shape: tuple[int, int], tokens: int, seed: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the regions [K, 3], the map of their shapes, and their level."""
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


def evs(request: AllocationRequest) -> RegionChoice:
    if request.memory.change is None:
        change = None
    else:
        change = request.memory.change.numpy()
    tiles = changed_tiles(change, request.shape, request.tokens)
    return of_tiles(request, torch.from_numpy(tiles), request.tokens)


def querystream(request: AllocationRequest) -> RegionChoice:
    if request.memory.change is None:
        novelty = None
    else:
        novelty = request.memory.change.numpy()
    tiles = relevant_news(request.relevance.numpy(), novelty, request.tokens)
    return of_tiles(request, torch.from_numpy(tiles), request.tokens)


_STRATEGIES: dict[str, Callable[[AllocationRequest], RegionChoice]] = {
    "topk": topk,
    "mixed": mixed,
    "foveated": foveated,
    "fixation": fixation,
    "grid": grid,
    "uniform": uniform,
    "random": random,
    "evs": evs,
    "querystream": querystream,
}
