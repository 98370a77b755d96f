"""Budgets, and the ways that options name."""

from __future__ import annotations

import sys

import pytest

from evaluation.errors import ChoiceError
from evaluation.runner import StrategyRun, plan, split
from evaluation.strategies.base import EVERYTHING, Budget
from evaluation.strategies.catalogue import STRATEGIES
from evaluation.strategies.pruning.registry import PRUNERS


@pytest.mark.parametrize(
    ("text", "tiles", "tokens"),
    [("27%", 64, 17), ("10%", 64, 6), ("64", 256, 64), ("64", 16, 16), ("0.1%", 64, 1), ("100%", 7, 7)],
)
def test_a_budget_is_a_share_or_a_number_of_tokens(text: str, tiles: int, tokens: int) -> None:
    assert Budget.parse(text).of(tiles) == tokens
    assert str(Budget.parse(f" {text} ")) == text


@pytest.mark.parametrize("text", ["", "0", "-3", "0%", "101%", "lots", "1.5", "%", "nan%", "inf%"])
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ChoiceError, match=r"such as 27%, or a number of tokens such as 64; got"):
        Budget.parse(text)


def names(ways: list[StrategyRun]) -> list[tuple[str, str, str, int]]:
    return [(way.strategy.name, str(way.budget), way.encode, way.seed) for way in ways]


def test_every_combination_is_run_once_and_what_is_random_with_every_seed() -> None:
    assert names(plan("full,grid,random", "27%,64", None, 2)) == [
        ("full", "100%", "full", 0),
        ("grid", "27%", "sparse", 0),
        ("grid", "64", "sparse", 0),
        ("random", "27%", "sparse", 0),
        ("random", "27%", "sparse", 1),
        ("random", "64", "sparse", 0),
        ("random", "64", "sparse", 1),
    ]
    assert plan("full", "27%", None, 1)[0].budget == EVERYTHING


def test_strategies_keep_their_own_encoding_if_they_do_not_know_the_given_one() -> None:
    assert names(plan("arr-coc-again,full", "27%", "incremental", 1)) == [
        ("arr-coc-again", "27%", "incremental", 0),
        ("full", "100%", "full", 0),
    ]
    assert names(plan("arr-coc,fastv,grid", "27%", "sparse,prune", 1)) == [
        ("arr-coc", "27%", "sparse", 0),
        ("arr-coc", "27%", "prune", 0),
        ("fastv", "27%", "prune", 0),
        ("grid", "27%", "sparse", 0),
        ("grid", "27%", "prune", 0),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("best", "27%", None, 1),
            "unknown strategy 'best'; there are arr-coc, arr-coc-foveated, arr-coc-mixed, arr-coc-fixation, ",
        ),
        (("grid", "27%", "dense", 1), "unknown encoding 'dense'; there are sparse, incremental, prune, weighted, full"),
        (("grid,evs", "27%", "weighted", 1), "--encode weighted suits none of the strategies grid, evs"),
        (("grid", "many", None, 1), "got 'many'"),
        (("grid", ",", None, 1), "--budget names nothing"),
        (("grid", "27%", None, 0), "--seeds is a whole number of at least 1, got 0"),
    ],
)
def test_unknown_names_are_reported_with_the_known_ones(
    options: tuple[str, str, str | None, int], message: str
) -> None:
    with pytest.raises(ChoiceError, match=message):
        plan(*options)


def test_a_list_holds_each_name_once() -> None:
    assert split(" a, b,a ,", "--x") == ["a", "b"]


def test_each_strategy_is_known_by_its_own_name_and_names_its_source() -> None:
    for name, strategy in STRATEGIES.items():
        assert strategy.name == name
        pruner = PRUNERS.get(name)
        home = next(
            module
            for path, module in sys.modules.items()
            if path.startswith("evaluation.strategies.")
            and not path.endswith("catalogue")
            and (path == type(pruner).__module__ if pruner else strategy in vars(module).values())
        )
        assert home.__doc__
        if not name.startswith(("arr-coc", "full", "smaller", "grid")):
            assert any(archive in home.__doc__ for archive in ("arXiv:", "openreview.net/"))
