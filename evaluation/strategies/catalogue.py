"""The strategies by name."""

from __future__ import annotations

from evaluation.errors import ChoiceError
from evaluation.strategies.ablation import ABLATIONS
from evaluation.strategies.arr_coc import (
    ARR_COC,
    ARR_COC_AGAIN,
    ARR_COC_FEEDBACK,
    ARR_COC_FIXATION,
    ARR_COC_FOVEATED,
    ARR_COC_GLANCE,
    ARR_COC_GLANCE_DROP,
    ARR_COC_GLANCE_KEEP,
    ARR_COC_GLANCE_SIMILARITY,
    ARR_COC_MIXED,
    ARR_COC_QUERYSTREAM,
    ARR_COC_STREAM,
)
from evaluation.strategies.base import Strategy
from evaluation.strategies.memory import MEMORY
from evaluation.strategies.newest import NAMES, newest_named
from evaluation.strategies.pictures import PICTURES
from evaluation.strategies.pruning.registry import PRUNERS
from evaluation.strategies.sampling import EVS, FULL, GRID, RANDOM, SMALLER
from evaluation.strategies.scaled import NAMES as SCALED_NAMES
from evaluation.strategies.scaled import scaled_named

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        ARR_COC,
        ARR_COC_FOVEATED,
        ARR_COC_MIXED,
        ARR_COC_FIXATION,
        ARR_COC_QUERYSTREAM,
        ARR_COC_GLANCE,
        ARR_COC_GLANCE_KEEP,
        ARR_COC_GLANCE_DROP,
        ARR_COC_STREAM,
        ARR_COC_AGAIN,
        ARR_COC_FEEDBACK,
        FULL,
        SMALLER,
        RANDOM,
        GRID,
        EVS,
        *(pruner.strategy() for pruner in PRUNERS.values()),
    )
}


def strategy_named(name: str) -> Strategy:
    """Raise ChoiceError, naming the strategies that there are."""
    strategies = STRATEGIES | MEMORY | ABLATIONS | PICTURES
    strategies |= {ARR_COC_GLANCE_SIMILARITY.name: ARR_COC_GLANCE_SIMILARITY}
    strategy = strategies.get(name) or scaled_named(name) or newest_named(name, STRATEGIES)
    if strategy is None:
        raise ChoiceError(f"unknown strategy {name!r}; there are {', '.join((*strategies, *NAMES, *SCALED_NAMES))}")
    return strategy
