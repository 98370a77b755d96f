"""How many tokens a frame may cost: fixed, or by how widely its relevance is spread."""

from __future__ import annotations

import math
import numbers
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from arr_coc.errors import BudgetError

Budget = int | Literal["adaptive"]

DEFAULT_TOKENS = 273
LEAST_TOKENS = 64
MOST_TOKENS = 400

_DUST = 1e-4  # rounding errors of a flat frame are spread widely, and must not buy the largest budget


def check_budget(budget: object, tiles: int) -> int:
    """A fixed budget, clamped to the number of tiles.

    Raises BudgetError for anything but a whole number of at least 1.
    """
    if isinstance(budget, bool) or not isinstance(budget, numbers.Integral) or budget < 1:
        raise BudgetError(
            f'a token budget is a whole number of at least 1, or "adaptive"; got {budget!r}. Try {DEFAULT_TOKENS}.'
        )
    return min(int(budget), tiles)


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
    """The number of tokens that `budget` (a whole number or "adaptive") means for one map [gh, gw].

    Raises BudgetError.
    """
    return adaptive_budget(relevance) if budget == "adaptive" else check_budget(budget, relevance.size)
