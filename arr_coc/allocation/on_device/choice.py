"""Choice of regions as tensors of static shapes: nothing waits for the device to say how many there are.

Strategies are those of `arr_coc.allocation.attending`, and choose the same regions from the same maps. `fixation` is
the host's alone: it follows one place, which the host has to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from arr_coc.allocation.allocator import VOID_HYSTERESIS
from arr_coc.allocation.attending import (
    STICKINESS,
    VOID_STRUCTURE,
    AllocationHistory,
    AllocationRequest,
    Tensions,
    allocate_frame,
    even_tiles,
    resolve_strategy,
)
from arr_coc.allocation.glance import GlanceOptions
from arr_coc.allocation.on_device.maps import DeviceWarp
from arr_coc.allocation.on_device.structure import map_structure, picture_structure
from arr_coc.ops.regions import (
    ABSENT,
    DULL,
    UNKNOWN,
    QuadTree,
    level_count,
    level_shape,
    paint,
    quadtree,
    region_areas,
    shape_map,
    tile_counts,
    top_level,
)

STRATEGIES_ON_DEVICE = ("auto", "topk", "mixed", "foveated", "grid", "uniform", "random")


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The regions of one frame, padded to the `tokens` that were planned.

    `regions` int64 [K, 3], `mask` bool [K] (False for padding, after the others), `relevance` float32 [K], mean over a
    region's tiles; `levels` int8 [gh, gw], the shape of the region that shows each tile, −1 where none does.
    """

    regions: torch.Tensor
    mask: torch.Tensor
    relevance: torch.Tensor
    levels: torch.Tensor

    @property
    def tokens(self) -> int:
        """Number of regions that were planned: a quadtree may leave two of them unspent."""
        return len(self.regions)

    def or_else(self, other: DeviceChoice, wanted: torch.Tensor) -> DeviceChoice:
        """This choice, or `other` where `wanted` (a scalar bool) is False."""
        mine, theirs = self.padded(other.tokens), other.padded(self.tokens)
        return DeviceChoice(
            torch.where(wanted, mine.regions, theirs.regions),
            torch.where(wanted, mine.mask, theirs.mask),
            torch.where(wanted, mine.relevance, theirs.relevance),
            torch.where(wanted, mine.levels, theirs.levels),
        )

    def padded(self, tokens: int) -> DeviceChoice:
        """The same with room for so many tokens at least."""
        more = tokens - self.tokens
        if more <= 0:
            return self
        return replace(
            self,
            regions=torch.cat([self.regions, self.regions.new_zeros(more, 3)]),
            mask=torch.cat([self.mask, self.mask.new_zeros(more)]),
            relevance=torch.cat([self.relevance, self.relevance.new_zeros(more)]),
        )


class DeviceTree:
    """A quadtree whose tables lie on a device; see `arr_coc.ops.regions.CoverTree`."""

    def __init__(self, tree: QuadTree, device: torch.device) -> None:
        def there(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        self.shape, self.top, self.roots, self.inner = tree.shape, tree.top, tree.roots, tree.inner
        self.tiles = there(tree.tiles)
        self._regions, self._parent = there(tree.regions), there(np.maximum(tree.parent, 0))
        self._by_place = there(tree.by_place)
        self._cost = there(tree.cost[: tree.inner])
        self._is_root = there(tree.parent < 0)
        self._scales = there(tree.scales)
        self._areas = there(region_areas())
        level_of, free = tree.regions[: tree.inner, 0], tree.cost[: tree.inner] == 0
        self._free = [there(np.flatnonzero(free & (level_of == level))) for level in range(tree.top, 0, -1)]
        rows, cols = np.indices(tree.shape)
        self._cells = []
        start = 0
        for level in range(tree.top, 0, -1):
            _, across = level_shape(tree.shape, level)
            self._cells.append((level, there(start + (rows >> level) * across + (cols >> level))))
            start += level_count(tree.shape, level)

    def pyramid(self, values: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        """`values` [gh, gw] added up for every region, or their largest: [N]."""
        levels = [values]
        for _ in range(self.top):
            levels.append(_paired(levels[-1], largest))
        return torch.cat([level.flatten() for level in reversed(levels)])

    def split_worth(self, relevance: torch.Tensor, previous: torch.Tensor | None) -> torch.Tensor:
        """The worth of splitting each region, [inner]; see `arr_coc.ops.regions.split_worth`."""
        matter = relevance + DULL
        worth = self.pyramid(matter * matter * matter)[: self.inner]
        if previous is None:
            return worth
        finest = -self.pyramid(-self._areas[previous.long()], largest=True)[: self.inner]
        return torch.where(finest < self._scales, worth * (1 + STICKINESS) ** 3, worth)

    def root(self) -> torch.Tensor:
        """The coarsest cover: nothing split. bool [inner]."""
        return torch.zeros(self.inner, dtype=torch.bool, device=self.tiles.device)

    def refine(self, split: torch.Tensor, worth: torch.Tensor, budget: int) -> torch.Tensor:
        """The cover after splitting further, in order of `worth`, within `budget` tokens."""
        ranked = torch.where(split, -math.inf, -worth[: self.inner])
        order = ranked.argsort(stable=True)
        paid = self._cost[order].cumsum(0) <= budget - self.roots
        finer = split | torch.zeros_like(split).scatter(0, order, paid)
        for free in self._free:  # parents before children
            if len(free):
                follows = self._is_root[free] | finer[self._parent[free]]
                finer = finer.scatter(0, free, finer[free] | follows)
        return finer

    def chosen(self, split: torch.Tensor, relevance: torch.Tensor, tokens: int) -> DeviceChoice:
        """The leaves of a cover of at most so many tokens, in token order."""
        whole = torch.cat([split, split.new_zeros(len(self._regions) - self.inner)])
        leaf = ((whole[self._parent] | self._is_root) & ~whole)[self._by_place]
        first = (~leaf).to(torch.uint8).argsort(stable=True)[:tokens]
        mask, index = leaf[first], self._by_place[first]
        means = (self.pyramid(relevance) / self.tiles)[index]
        regions = torch.where(mask[:, None], self._regions[index], 0)
        return DeviceChoice(regions, mask, torch.where(mask, means, 0.0), self._levels(split))

    def _levels(self, split: torch.Tensor) -> torch.Tensor:
        """The level that shows each tile: int8 [gh, gw]."""
        shown = torch.full(self.shape, self.top, dtype=torch.int8, device=split.device)
        for level, cells in self._cells:
            shown = torch.where((shown == level) & split[cells], level - 1, shown).to(torch.int8)
        return shown


def _paired(values: torch.Tensor, largest: bool) -> torch.Tensor:
    """2×2 cells combined; the last row and column of odd sizes by themselves."""
    fill = -math.inf if largest else 0.0
    rows, cols = values.shape
    padded = torch.nn.functional.pad(values, (0, cols % 2, 0, rows % 2), value=fill)
    for axis in (0, 1):
        one, other = padded.unflatten(axis, (-1, 2)).unbind(axis + 1)
        padded = torch.maximum(one, other) if largest else one + other
    return padded


@lru_cache(maxsize=16)
def device_tree(shape: tuple[int, int], top: int, device: torch.device) -> DeviceTree:
    """The quadtree of a grid on a device, made once."""
    return DeviceTree(quadtree(shape, top), device)


@lru_cache(maxsize=16)
def _even_on(shape: tuple[int, int], count: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(even_tiles(shape, count).copy()).to(device)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One frame's worth of choosing.

    `relevance` float32 [gh, gw], `tokens` of the budget, `previous` int8 [gh, gw] (shapes that were shown last) and
    `staleness` float32 [gh, gw], where there are such.
    """

    relevance: torch.Tensor
    tokens: int
    coverage: float
    seed: int
    previous: torch.Tensor | None = None
    staleness: torch.Tensor | None = None
    explore: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self.relevance.shape
        return rows, cols

    @property
    def exploring(self) -> int:
        """Tokens that go by staleness."""
        return 0 if self.staleness is None else round(self.explore * self.tokens)


def choose_on_device(request: DeviceRequest, strategy: str) -> DeviceChoice:
    """The regions of one frame by a strategy that is not `auto`."""
    if strategy != "uniform" and request.tokens >= request.relevance.numel():
        return _of_tiles(request, torch.ones_like(request.relevance, dtype=torch.bool), request.relevance.numel())
    return _STRATEGIES.get(strategy, _fixed(strategy))(request)


def _of_tiles(request: DeviceRequest, chosen: torch.Tensor, tokens: int) -> DeviceChoice:
    """Tiles that were chosen, bool [gh, gw], exactly so many of them."""
    flat, cols = chosen.flatten(), request.shape[1]
    index = (~flat).to(torch.uint8).argsort(stable=True)[:tokens]
    regions = torch.stack([torch.zeros_like(index), index // cols, index % cols], dim=1)
    levels = torch.where(chosen, 0, ABSENT).to(torch.int8)
    return DeviceChoice(regions, flat[index], request.relevance.flatten()[index], levels)


def _best(worth: torch.Tensor, count: int, taken: torch.Tensor) -> torch.Tensor:
    """`taken` with the `count` tiles of highest worth (of equals, the first) beside."""
    order = torch.where(taken, math.inf, -worth).flatten().argsort(stable=True)[:count]
    return taken.flatten().scatter(0, order, True).reshape(taken.shape)


def _most_worth(request: DeviceRequest, chosen: torch.Tensor, spent: int) -> torch.Tensor:
    """Fill `chosen` up to the budget, of which `spent` is: by relevance first, then the exploring share by neglect."""
    left = request.tokens - spent
    exploring = min(request.exploring, left)
    worth = request.relevance
    if request.previous is not None:
        matter = worth + DULL
        worth = torch.where(request.previous == 0, matter * (1 + STICKINESS), matter)
    chosen = _best(worth, left - exploring, chosen)
    if exploring and request.staleness is not None:
        chosen = _best(request.staleness, exploring, chosen)
    return chosen


def _topk(request: DeviceRequest) -> DeviceChoice:
    nothing = torch.zeros_like(request.relevance, dtype=torch.bool)
    return _of_tiles(request, _most_worth(request, nothing, 0), request.tokens)


def _mixed(request: DeviceRequest) -> DeviceChoice:
    covering = round(request.coverage * request.tokens)
    if not covering:
        return _topk(request)
    even = _even_on(request.shape, covering, request.relevance.device)
    spent = int(even_tiles(request.shape, covering).sum())
    return _of_tiles(request, _most_worth(request, even, spent), request.tokens)


def _foveated(request: DeviceRequest) -> DeviceChoice:
    tree = device_tree(request.shape, top_level(request.shape, request.tokens), request.relevance.device)
    if tree.roots > request.tokens:
        return _few(request, tree)
    worth = tree.split_worth(request.relevance, request.previous)
    split = tree.refine(tree.root(), worth, max(request.tokens - request.exploring, tree.roots))
    if request.staleness is not None:
        split = tree.refine(split, tree.pyramid(request.staleness, largest=True), request.tokens)
    return tree.chosen(split, request.relevance, request.tokens)


def _few(request: DeviceRequest, tree: DeviceTree) -> DeviceChoice:
    """A budget too small for any cover: the best regions of the coarsest level."""
    worth = tree.pyramid(request.relevance)
    best = (-worth[: tree.roots]).argsort(stable=True)[: request.tokens].sort().values
    across = -(-request.shape[1] >> tree.top)
    regions = torch.stack([torch.full_like(best, tree.top), best // across, best % across], dim=1)
    rows, cols = (torch.arange(side, device=best.device) >> tree.top for side in request.shape)
    shown = torch.zeros(tree.roots, dtype=torch.bool, device=best.device).scatter(0, best, True)
    levels = torch.where(shown[rows[:, None] * across + cols], tree.top, ABSENT).to(torch.int8)
    return DeviceChoice(regions, torch.ones_like(best, dtype=torch.bool), (worth / tree.tiles)[best], levels)


def _fixed(strategy: str) -> Callable[[DeviceRequest], DeviceChoice]:
    """`grid`, `uniform`, `random`: they look at no map, so the host chooses once for all frames."""

    def choose(request: DeviceRequest) -> DeviceChoice:
        device = request.relevance.device
        regions, levels, tiles, painted = _fixed_on(strategy, request.shape, request.tokens, request.seed, device)
        sums = torch.zeros_like(tiles).scatter_add(0, painted.flatten(), request.relevance.flatten())
        mask = torch.ones(len(regions), dtype=torch.bool, device=device)
        return DeviceChoice(regions, mask, (sums / tiles)[: len(regions)], levels)

    return choose


@lru_cache(maxsize=16)
def _fixed_on(
    strategy: str, shape: tuple[int, int], tokens: int, seed: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Regions [K, 3], level map, tiles of each region [K + 1], and which of them shows each tile (K for none)."""
    request = AllocationRequest(np.zeros(shape, np.float32), tokens, 0.0, seed, AllocationHistory())
    regions = allocate_frame(request, strategy).regions.numpy()
    count = len(regions)
    tables = (
        regions,
        shape_map(regions, shape),
        np.append(tile_counts(regions, shape), 1).astype(np.float32),
        paint(regions, np.arange(count), shape, count),
    )
    first, levels, tiles, painted = (torch.from_numpy(np.ascontiguousarray(table)).to(device) for table in tables)
    return first, levels, tiles, painted


_STRATEGIES: dict[str, Callable[[DeviceRequest], DeviceChoice]] = {
    "topk": _topk,
    "mixed": _mixed,
    "foveated": _foveated,
}


@dataclass(frozen=True, slots=True)
class DeviceSelection:
    """A choice, of which the first `overview` regions are an overview; `glance_tokens`: those of one, shown or not.

    `jitter`, a scalar: share of tiles that are shown by another shape than before. `void`, a scalar bool: the picture
    is one, for which `grid` was chosen in the place of `strategy`; None where that is not judged.
    """

    choice: DeviceChoice
    overview: int
    glance_tokens: int
    jitter: torch.Tensor
    void: torch.Tensor | None
    strategy: str


class DeviceSelector:
    """Chooses the regions of one epoch's frames, each in the light of the frame before.

    See `arr_coc.allocation.allocator.RegionSelector`.
    """

    def __init__(
        self, strategy: str, tensions: Tensions, *, levels: bool, seed: int, glance: GlanceOptions | None
    ) -> None:
        self._strategy, self._tensions, self._levels, self._seed = strategy, tensions, levels, seed
        self._glance = glance
        self._previous: torch.Tensor | None = None
        self._before: torch.Tensor | None = None
        self._void: torch.Tensor | None = None
        self._appearance: torch.Tensor | None = None

    def follow(self, step: DeviceWarp) -> None:
        """Content moved by whole tiles: what was shown moves with it."""
        if self._previous is not None:
            self._previous = step.nearest(self._previous, UNKNOWN)

    def forget_choice(self) -> None:
        """The newest frame is chosen from once more, in the light of the frame before it."""
        self._previous = self._before

    def overview(self, tokens: int, shape: tuple[int, int]) -> np.ndarray:
        """The regions [K, 3] of the overview that a budget has room for; none without glances."""
        return np.zeros((0, 3), np.int64) if self._glance is None else self._glance.overview(tokens, shape)

    def choose(
        self,
        relevance: torch.Tensor,
        tokens: int,
        staleness: torch.Tensor | None,
        appearance: torch.Tensor,
        prior: torch.Tensor | None,
        *,
        glanced: bool = False,
    ) -> DeviceSelection:
        """The choice for a map [gh, gw] within `tokens`; arguments are those of `RegionSelector.choose`."""
        rows, cols = relevance.shape
        overview = self.overview(tokens, (rows, cols))
        keeps = self._glance is not None and self._glance.keeps(overview, glanced=glanced)
        shown = overview if keeps else overview[:0]
        left = tokens - (len(overview) if glanced else len(shown))
        glances, tensions = self._glance is not None, self._tensions
        strategy = resolve_strategy(self._strategy, False, left, self._levels, glances=glances)
        request = DeviceRequest(
            relevance, left, tensions.coverage, self._seed, self._previous, staleness, tensions.explore
        )
        choice, void = choose_on_device(request, strategy), None
        if self._strategy == "auto":
            void = self._is_void(appearance)
            if prior is not None:
                void = void & (map_structure(prior[0] * prior[2]) < VOID_STRUCTURE)
            choice = choose_on_device(request, "grid").or_else(choice, void)
        jitter = _jitter(self._previous, choice.levels)
        self._before, self._previous = self._previous, choice.levels
        whole = _after_overview(shown, choice, relevance)
        return DeviceSelection(whole, len(shown), len(overview), jitter, void, strategy)

    def _is_void(self, appearance: torch.Tensor) -> torch.Tensor:
        """Whether `auto` finds nothing to choose by: a scalar; judged anew only where the picture is another."""
        if self._void is None:
            self._void = picture_structure(appearance) < VOID_STRUCTURE
        elif appearance is not self._appearance:
            limit = torch.where(self._void, VOID_STRUCTURE + VOID_HYSTERESIS, VOID_STRUCTURE - VOID_HYSTERESIS)
            self._void = picture_structure(appearance) < limit
        self._appearance = appearance
        return self._void


def _jitter(previous: torch.Tensor | None, levels: torch.Tensor) -> torch.Tensor:
    if previous is None:
        return torch.zeros((), device=levels.device)
    seen = previous != UNKNOWN
    return ((previous != levels) & seen).sum() / seen.sum().clamp(min=1)


def _after_overview(overview: np.ndarray, choice: DeviceChoice, relevance: torch.Tensor) -> DeviceChoice:
    """A choice behind the regions of an overview [N, 3], which may be none."""
    if not len(overview):
        return choice
    rows, cols = relevance.shape
    first, tiles, painted = _overview_on(overview.tobytes(), (rows, cols), relevance.device)
    means = torch.zeros_like(tiles).scatter_add(0, painted.flatten(), relevance.flatten()) / tiles
    level = int(overview[0, 0])
    shown = torch.where(choice.levels == ABSENT, level, choice.levels.clamp(max=level)).to(torch.int8)
    return DeviceChoice(
        torch.cat([first, choice.regions]),
        torch.cat([torch.ones(len(first), dtype=torch.bool, device=first.device), choice.mask]),
        torch.cat([means, choice.relevance]),
        shown,
    )


@lru_cache(maxsize=8)
def _overview_on(
    overview: bytes, shape: tuple[int, int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    regions = np.frombuffer(overview, np.int64).reshape(-1, 3)
    painted = paint(regions, np.arange(len(regions)), shape, 0)
    tables = (regions.copy(), tile_counts(regions, shape).astype(np.float32), painted)
    first, tiles, where = (torch.from_numpy(table).to(device) for table in tables)
    return first, tiles, where
