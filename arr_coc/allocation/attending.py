"""Choice of regions for a budget of tokens, as a function; and the tensions of that choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence

from arr_coc.allocation.strategies import (
    AllocationHistory,
    AllocationRequest,
    check_strategy,
    choose,
    resolve_strategy,
)
from arr_coc.allocation.structure import VOID_STRUCTURE, map_structure
from arr_coc.budget import DEFAULT_BUDGET, DEFAULT_LIMITS, Budget, TokenLimits, tokens_for
from arr_coc.errors import NonFiniteError, OptionError, ShapeError
from arr_coc.types import Allocation


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
        allocations.append(allocate_frame(request, resolve_strategy(strategy, void)))
    if maps.ndim == 2:
        return allocations[0]
    return stack_allocations(allocations)


def allocate_frame(request: AllocationRequest, strategy: str) -> Allocation:
    """Choose one frame's regions, in host memory, by a strategy that is not `auto`; nothing is checked."""
    choice = choose(request, strategy)
    return Allocation(choice.regions, choice.relevance, choice.mask)


def stack_allocations(frames: list[Allocation]) -> Allocation:
    """Allocations of several frames as one with a batch dimension, padded with masked zeros to the longest."""
    return Allocation(
        regions=pad_sequence([frame.regions for frame in frames], batch_first=True),
        relevance=pad_sequence([frame.relevance for frame in frames], batch_first=True),
        mask=pad_sequence([frame.mask for frame in frames], batch_first=True),
    )


def _checked_map(relevance: torch.Tensor | npt.NDArray[np.float32]) -> torch.Tensor:
    """Return the map as a tensor."""
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
