"""Tokens that a frame may cost: a number, a share of its tiles, or by how widely its relevance is spread.

| budget | tokens of a frame |
| --- | --- |
| `64` | so many |
| `"27%"` | this share of the frame's tiles, at least 1 |
| `"auto"` | 27 % of the tiles, within 64 to 400: means the same at every size |
| `"adaptive"` | 64 to 400, by how widely relevance is spread |

None is more than the frame's tiles.
"""

from __future__ import annotations

import math
import numbers
import re
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from arr_coc.errors import BudgetError

Budget: TypeAlias = int | str

AUTO, ADAPTIVE = "auto", "adaptive"
DEFAULT_BUDGET = AUTO
AUTO_SHARE = 0.27
LEAST_TOKENS = 64
MOST_TOKENS = 400

SHARE_PATTERN = r"^(?:100(?:\.0*)?|[1-9]\d?(?:\.\d*)?|0?\.\d*[1-9]\d*)%$"
"""A share above 0 % and up to 100 %."""

_DUST = 1e-4  # rounding errors of a flat frame are spread widely, and must not buy the largest budget


def check_budget(budget: object) -> None:
    """Raises BudgetError for what is neither a whole number of at least 1, nor a share, "auto" or "adaptive"."""
    if budget != ADAPTIVE:
        fixed_tokens(budget, tiles=1)


def fixed_tokens(budget: object, tiles: int) -> int:
    """The tokens that a number, a share or "auto" means for a frame of so many tiles; never more than these.

    Raises BudgetError for anything else, also for "adaptive", which needs a relevance map.
    """
    if budget == AUTO:
        return min(max(round(AUTO_SHARE * tiles), LEAST_TOKENS), MOST_TOKENS, tiles)
    if isinstance(budget, str) and re.match(SHARE_PATTERN, budget):
        return min(max(round(float(budget[:-1]) / 100 * tiles), 1), tiles)
    if isinstance(budget, bool) or not isinstance(budget, numbers.Integral) or budget < 1:
        raise BudgetError(
            'a token budget is a whole number of at least 1, a share of the tiles such as "27%", "auto" or "adaptive"; '
            f'got {budget!r}. Try "auto".'
        )
    return min(int(budget), tiles)


def most_tokens(budget: Budget, tiles: int) -> int:
    """The most tokens that a frame of so many tiles gets. Raises BudgetError."""
    return min(MOST_TOKENS, tiles) if budget == ADAPTIVE else fixed_tokens(budget, tiles)


def least_tokens_wanted(budget: Budget) -> int:
    """The tokens that a budget asks for however small the frame is: a frame with fewer tiles is shown whole."""
    if budget in (AUTO, ADAPTIVE):
        return LEAST_TOKENS
    return 1 if isinstance(budget, str) else int(budget)


def adaptive_budget(relevance: npt.NDArray[Any], least: int = LEAST_TOKENS, most: int = MOST_TOKENS) -> int:
    """Few tokens where relevance is gathered in one place, many where it is spread over the frame.

    `relevance` [gh, gw]; K = least + (most − least)·H(p)/log n, with p ∝ max(0, relevance − median), n the number of
    tiles; `least` where nothing stands out at all. Clamped to the number of tiles.
    """
    above = (relevance - np.median(relevance)).ravel().astype(np.float64)
    standing_out = above[above > _DUST]
    if standing_out.size == 0 or above.size < 2:
        return min(least, above.size)
    share = standing_out / standing_out.sum()
    entropy = -float((share * np.log(share)).sum())
    return min(round(least + (most - least) * entropy / math.log(above.size)), above.size)


def tokens_for(budget: object, relevance: npt.NDArray[Any]) -> int:
    """The number of tokens that `budget` means for one map [gh, gw]. Raises BudgetError."""
    return adaptive_budget(relevance) if budget == ADAPTIVE else fixed_tokens(budget, relevance.size)
