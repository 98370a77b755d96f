"""Choice of regions for a budget of tokens by a named strategy, and the tensions of that choice.

| strategy | regions |
| --- | --- |
| `topk` | the K most relevant tiles, level 0 |
| `mixed` | level 0: a share (`coverage`) spread evenly, the rest the most relevant tiles |
| `foveated` | a quadtree cover of the whole frame, fine at high relevance; K − 2 tokens or more |
| `fixation` | the same, fine around the place of most relevance and coarser with distance |
| `grid` | every n-th tile, n the smallest that the budget pays, phase fixed |
| `uniform` | K regions of one level, spread evenly: the coarsest level that has as many |
| `random` | K tiles drawn with `seed` |
| `evs` | the K tiles that changed most since the frame shown before (`strategies/evs.py`) |
| `auto` | `topk` if glances are made, `grid` for a void; else `foveated` if the model knows levels and has 64 tokens
or more, else `mixed` |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence

from arr_coc.allocation.choice import (
    AllocationHistory,
    AllocationRequest,
    RegionChoice,
    Regions,
    best_tiles,
    of_regions,
    of_tiles,
)
from arr_coc.allocation.strategies.covers import fixation, foveated
from arr_coc.allocation.strategies.even import grid, random, uniform
from arr_coc.allocation.strategies.evs import evs
from arr_coc.allocation.strategies.relevant import mixed, topk
from arr_coc.allocation.structure import VOID_STRUCTURE, map_structure
from arr_coc.budget import DEFAULT_BUDGET, DEFAULT_LIMITS, Budget, TokenLimits, tokens_for
from arr_coc.errors import NonFiniteError, OptionError, ShapeError, StrategyError
from arr_coc.texture.regions import region_pool
from arr_coc.types import Allocation

Strategy = Literal["auto", "topk", "mixed", "foveated", "fixation", "grid", "uniform", "random", "evs"]

STRATEGIES: tuple[str, ...] = get_args(Strategy)

STRATEGIES_ON_DEVICE = tuple(name for name in STRATEGIES if name not in ("fixation", "evs"))
"""Strategies that a device can choose by. The host has to know the place that `fixation` follows, and keeps the picture
that `evs` compares with."""

COVER_TOKENS = 64
"""Budget from which `auto` covers the whole frame. With fewer tokens, a cover leaves hardly a tile sharp, and the
bundled model was right up to 1.8 times as often with `mixed`, on scenes that it had not seen (training/README.md)."""


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


def allocate(
    relevance: torch.Tensor | npt.NDArray[np.float32],
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


def _checked_map(relevance: torch.Tensor | npt.NDArray[np.float32]) -> torch.Tensor:
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


_STRATEGIES: dict[str, Callable[[AllocationRequest], RegionChoice]] = {
    "topk": topk,
    "mixed": mixed,
    "foveated": foveated,
    "fixation": fixation,
    "grid": grid,
    "uniform": uniform,
    "random": random,
    "evs": evs,
}
