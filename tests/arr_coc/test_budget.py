"""Budgets: fixed, a share, automatic, and adaptive by the spread of relevance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc.allocation.attending import allocate
from arr_coc.budget import (
    TokenLimits,
    adaptive_budget,
    check_budget,
    fixed_tokens,
    most_tokens,
    relevance_spread,
    requested_tokens,
    tokens_for,
)
from arr_coc.errors import BudgetError, NonFiniteError


@pytest.mark.parametrize(
    "budget", [0, -3, 2.5, float("nan"), True, "many", None, "0%", "0.0%", "101%", "-5%", "%", "27", "2e1%", "27%\n"]
)
def test_budgets_that_are_none(budget: object) -> None:
    with pytest.raises(BudgetError, match="whole number of at least 1"):
        check_budget(budget)


def test_a_budget_beyond_the_frame_is_clamped() -> None:
    assert fixed_tokens(273, 100) == 100
    assert fixed_tokens(np.int64(64), 100) == 64


@pytest.mark.parametrize(
    ("budget", "tiles", "tokens"),
    [
        ("auto", 2040, 400),
        ("auto", 1024, 276),
        ("auto", 300, 81),
        ("auto", 240, 65),
        ("auto", 238, 64),
        ("auto", 100, 64),
        ("auto", 64, 64),
        ("auto", 48, 48),
        ("auto", 1, 1),
        ("27%", 2040, 551),
        ("27%", 100, 27),
        ("27%", 1, 1),
        ("12.5%", 240, 30),
        (".5%", 2040, 10),
        ("100%", 2040, 2040),
    ],
)
def test_a_share_means_the_same_at_every_size(budget: str, tiles: int, tokens: int) -> None:
    check_budget(budget)
    assert fixed_tokens(budget, tiles) == most_tokens(budget, tiles) == tokens
    assert tokens_for(budget, torch.zeros(tiles, 1)) == tokens


def test_adaptive_has_no_number_without_a_map() -> None:
    check_budget("adaptive")
    assert (most_tokens("adaptive", 1024), most_tokens("adaptive", 100)) == (400, 100)
    with pytest.raises(BudgetError):
        fixed_tokens("adaptive", 100)


def test_adaptive_follows_the_formula() -> None:
    relevance = torch.zeros(34, 60)
    relevance[:8, :16] = 0.5
    entropy = np.log(8 * 16) / np.log(34 * 60)
    assert adaptive_budget(relevance) == round(64 + 336 * entropy)


def test_adaptive_is_small_for_one_spot_and_large_for_many() -> None:
    spot = torch.zeros(34, 60)
    spot[3, 4] = 1
    spread = torch.from_numpy(np.random.default_rng(0).random((34, 60), np.float32))
    assert adaptive_budget(spot) == 64
    assert 340 < adaptive_budget(spread) <= 400


def test_adaptive_of_a_flat_map_and_of_small_grids() -> None:
    flat = torch.full((34, 60), 0.4)
    dust = torch.from_numpy(np.random.default_rng(0).normal(0, 1e-8, (34, 60)))
    assert adaptive_budget(flat) == adaptive_budget(flat + dust) == 64
    assert adaptive_budget(torch.full((5, 5), 0.4)) == 25
    assert adaptive_budget(torch.ones(1, 1)) == 1
    assert tokens_for("adaptive", torch.from_numpy(np.random.default_rng(0).random((6, 6)))) == 36


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_adaptive_of_a_broken_map_is_an_error(broken: float) -> None:
    relevance = torch.rand(6, 6)
    relevance[2, 2] = broken
    with pytest.raises(NonFiniteError, match="relevance"):
        adaptive_budget(relevance)


def test_limits_hold_for_budgets_that_adapt_and_for_no_others() -> None:
    limits, spread = TokenLimits(20, 30), np.random.default_rng(0).random((34, 60), np.float32)
    assert [fixed_tokens(budget, 2040, limits) for budget in ("auto", 500, "50%")] == [30, 500, 1020]
    assert [fixed_tokens("auto", tiles, limits) for tiles in (90, 50, 10)] == [24, 20, 10]
    assert (most_tokens("adaptive", 2040, limits), requested_tokens("auto", limits)) == (30, 20)
    relevance = torch.from_numpy(spread)
    assert 28 < adaptive_budget(relevance, limits) == tokens_for("adaptive", relevance, limits) <= 30
    assert adaptive_budget(torch.zeros(34, 60), limits) == 20
    assert allocate(spread, "adaptive", "topk", limits=TokenLimits(9, 9)).tokens == 9


def test_a_factor_of_all_relevance_is_no_spread() -> None:
    relevance = torch.from_numpy(np.random.default_rng(3).random((6, 9)).astype(np.float32) ** 4)
    assert 0 < relevance_spread(relevance) == pytest.approx(relevance_spread(relevance / 2), abs=1e-3)
    assert relevance_spread(torch.eye(1, 20)) == 0


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ((0, 400), "min_tokens is a whole number of at least 1, got 0"),
        ((64, True), "max_tokens is a whole number of at least 1, got True"),
        ((64, 63), "min_tokens, 64, is more than max_tokens, 63"),
    ],
)
def test_limits_that_are_none(limits: tuple[int, int], message: str) -> None:
    with pytest.raises(BudgetError, match=message):
        TokenLimits(*limits)
