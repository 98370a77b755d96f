"""What is to be run: every way to answer that the options name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arr_coc.types import Encode
from evaluation.budgets import EVERYTHING, Budget
from evaluation.errors import ChoiceError
from evaluation.strategies.base import Strategy
from evaluation.strategies.catalogue import strategy_named

ENCODES: tuple[Encode, ...] = ("sparse", "incremental", "prune", "weighted", "full")


@dataclass(frozen=True, slots=True)
class Way:
    """One strategy at one budget, with one encoding and one seed."""

    strategy: Strategy
    budget: Budget
    encode: Encode
    seed: int = 0


def plan(strategies: str, budgets: str, encodes: str | None, seeds: int) -> list[Way]:
    """From comma-separated names. Without encodings, or with none that it knows, a strategy encodes in its own way.

    Raises ChoiceError for a name that does not exist, and an encoding that no strategy of the list knows.
    """
    chosen = [strategy_named(name) for name in split(strategies, "--strategy")]
    spent = [Budget.parse(text) for text in split(budgets, "--budget")]
    wanted = _encodes(encodes, chosen)
    if seeds < 1:
        raise ChoiceError(f"--seeds is a whole number of at least 1, got {seeds}")
    return [
        Way(strategy, budget, encode, seed)
        for strategy in chosen
        for budget in (spent if strategy.budgeted else [EVERYTHING])
        for encode in _known(strategy, wanted)
        for seed in range(seeds if strategy.seeded else 1)
    ]


def split(text: str, option: str) -> list[str]:
    """The parts of a comma-separated list, each once. Raises ChoiceError where there is none."""
    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise ChoiceError(f"{option} names nothing; leave it out, or give at least one name")
    return parts


def _encodes(text: str | None, strategies: Sequence[Strategy]) -> list[str]:
    wanted = split(text, "--encode") if text is not None else []
    for name in wanted:
        if name not in ENCODES:
            raise ChoiceError(f"unknown encoding {name!r}; there are {', '.join(ENCODES)}")
        if not any(name in strategy.encodes for strategy in strategies):
            names = ", ".join(strategy.name for strategy in strategies)
            raise ChoiceError(f"--encode {name} suits none of the strategies {names}; leave it out, or add arr-coc")
    return wanted


def _known(strategy: Strategy, wanted: Sequence[str]) -> list[Encode]:
    return [encode for encode in strategy.encodes if encode in wanted] or [strategy.encodes[0]]
