"""The strategies by name."""

from __future__ import annotations

from evaluation.errors import ChoiceError
from evaluation.strategies.again import ARR_COC_AGAIN, ARR_COC_FEEDBACK
from evaluation.strategies.arr_coc import ARR_COC, ARR_COC_FOVEATED, ARR_COC_MIXED, ARR_COC_STREAM
from evaluation.strategies.base import Strategy
from evaluation.strategies.divprune import DIVPRUNE
from evaluation.strategies.evs import EVS
from evaluation.strategies.fastv import FASTV
from evaluation.strategies.full import FULL, FULL_APART
from evaluation.strategies.grid import GRID
from evaluation.strategies.pyramiddrop import PYRAMIDDROP
from evaluation.strategies.random_tiles import RANDOM
from evaluation.strategies.smaller import SMALLER

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        ARR_COC,
        ARR_COC_FOVEATED,
        ARR_COC_MIXED,
        ARR_COC_STREAM,
        ARR_COC_AGAIN,
        ARR_COC_FEEDBACK,
        FULL,
        FULL_APART,
        SMALLER,
        RANDOM,
        GRID,
        EVS,
        FASTV,
        PYRAMIDDROP,
        DIVPRUNE,
    )
}


def strategy_named(name: str) -> Strategy:
    """Raises ChoiceError, naming the strategies that there are."""
    if name not in STRATEGIES:
        raise ChoiceError(f"unknown strategy {name!r}; there are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
