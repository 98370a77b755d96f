"""Tokens that a frame may cost: a number, a share of its tiles, or by how widely its relevance is spread.

| budget | tokens of a frame |
| --- | --- |
| `64` | this number |
| `"27%"`, `0.27` | this share of the frame's tiles, at least 1 |
| `"auto"` | 27 % of the tiles, within `TokenLimits`: means the same at every size |
| `"adaptive"` | within `TokenLimits`, by how widely relevance is spread |

None is more than the frame's tiles.
"""

from __future__ import annotations

import math
import numbers
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from arr_coc.errors import BudgetError, NonFiniteError

if TYPE_CHECKING:
    import torch

Budget: TypeAlias = int | float | str

AUTO = "auto"
ADAPTIVE = "adaptive"
DEFAULT_BUDGET = AUTO
AUTO_SHARE = 0.27
SHARE_PATTERN = r"(?:100(?:\.0*)?|[1-9]\d?(?:\.\d*)?|0?\.\d*[1-9]\d*)%"
"""A share above 0 % and up to 100 %."""


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Least and most tokens of the budgets "auto" and "adaptive", and of a latency target. Raises BudgetError unless
    1 ≤ `min_tokens` ≤ `max_tokens`."""

    min_tokens: int = 64
    max_tokens: int = 400

    def __post_init__(self) -> None:
        for name, tokens in (("min_tokens", self.min_tokens), ("max_tokens", self.max_tokens)):
            if isinstance(tokens, bool) or not isinstance(tokens, numbers.Integral) or tokens < 1:
                raise BudgetError(f"{name} is a whole number of at least 1, got {tokens!r}")
        if self.min_tokens > self.max_tokens:
            raise BudgetError(f"min_tokens, {self.min_tokens}, is more than max_tokens, {self.max_tokens}")

    def bound(self, tokens: int, tiles: int) -> int:
        """Return `tokens` brought within the limits, and never more than a frame's tiles."""
        return min(max(tokens, self.min_tokens), self.max_tokens, tiles)


DEFAULT_LIMITS = TokenLimits()

_DUST = 1e-4  # rounding errors of a flat frame are spread widely, and must not buy the largest budget


def check_budget(budget: object) -> None:
    """Raise BudgetError for what is neither a whole number of at least 1, nor a share, "auto" or "adaptive"."""
    if budget != ADAPTIVE:
        fixed_tokens(budget, tiles=1)


def fixed_tokens(budget: object, tiles: int, limits: TokenLimits = DEFAULT_LIMITS) -> int:
    """Return the tokens that a number, a share or "auto" means for a frame of `tiles` tiles; never more than these.

    Raises BudgetError for anything else, also for "adaptive", which needs a relevance map.
    """
    if budget == AUTO:
        return limits.bound(round(AUTO_SHARE * tiles), tiles)
    if isinstance(budget, str) and re.fullmatch(SHARE_PATTERN, budget):
        return min(max(round(float(budget[:-1]) / 100 * tiles), 1), tiles)
    if isinstance(budget, (float, np.floating)) and 0 < budget <= 1:
        return min(max(round(float(budget) * tiles), 1), tiles)
    if isinstance(budget, bool) or not isinstance(budget, numbers.Integral) or budget < 1:
        raise BudgetError(
            'a token budget is a whole number of at least 1, a share of the tiles such as "27%" or 0.27, "auto" or '
            f'"adaptive"; got {budget!r}. Try "auto".'
        )
    return min(int(budget), tiles)


def most_tokens(budget: Budget, tiles: int, limits: TokenLimits = DEFAULT_LIMITS) -> int:
    """Return the most tokens of a frame of `tiles` tiles. Raises BudgetError."""
    if budget == ADAPTIVE:
        return min(limits.max_tokens, tiles)
    return fixed_tokens(budget, tiles, limits)


def requested_tokens(budget: Budget, limits: TokenLimits = DEFAULT_LIMITS) -> int:
    """Return the tokens that a budget asks for however small the frame is: a frame with fewer tiles is shown whole."""
    if budget in (AUTO, ADAPTIVE):
        return limits.min_tokens
    if isinstance(budget, numbers.Integral):
        return int(budget)
    return 1


def relevance_spread(relevance: torch.Tensor) -> float:
    """Spread of relevance [gh, gw] over the frame, in [0, 1]: 0 if it is in one tile or nothing stands out.

    H(p)/log n, with p ∝ max(0, relevance − median), H its entropy and n the number of tiles. A factor of the whole map
    changes nothing. It is computed where the map lies: from a device one number comes to the host, 8 bytes. Raises
    NonFiniteError for a map that holds NaN or infinity.
    """
    tiles = relevance.numel()
    if tiles < 2:
        return 0.0
    ordered = relevance.flatten().sort().values
    above = (relevance - (ordered[(tiles - 1) // 2] + ordered[tiles // 2]) / 2).double()
    standing_out = above * (above > _DUST)
    share = standing_out / standing_out.sum().clamp(min=_DUST)
    entropy = -float(share.xlogy(share).sum())
    if not math.isfinite(entropy):
        raise NonFiniteError("relevance holds NaN or infinity, which no budget of tokens follows from")
    return entropy / math.log(tiles)


def adaptive_budget(relevance: torch.Tensor, limits: TokenLimits = DEFAULT_LIMITS) -> int:
    """Few tokens if relevance is concentrated in one place, many if it is spread over the frame.

    `relevance` [gh, gw]; K = least + (most − least)·`relevance_spread`, with least and most of `limits`. Clamped to the
    number of tiles. Raises as `relevance_spread`.
    """
    least = limits.min_tokens
    most = limits.max_tokens
    return min(round(least + (most - least) * relevance_spread(relevance)), relevance.numel())


def tokens_for(budget: object, relevance: torch.Tensor, limits: TokenLimits = DEFAULT_LIMITS) -> int:
    """Return the number of tokens that a budget means for one map.

    Args:
        budget: A whole number of at least 1, a share of the tiles, "auto" or "adaptive".
        relevance: The map, float [gh, gw].
        limits: Of the budgets "auto" and "adaptive".

    Raises:
        BudgetError: Anything else as a budget.
        NonFiniteError: As `adaptive_budget`.
    """
    if budget == ADAPTIVE:
        return adaptive_budget(relevance, limits)
    return fixed_tokens(budget, relevance.numel(), limits)
