from __future__ import annotations

import numpy as np
import pytest

from arr_coc.budget import adaptive_budget, check_budget, fixed_tokens, most_tokens, tokens_for
from arr_coc.errors import BudgetError


@pytest.mark.parametrize(
    "budget", [0, -3, 2.5, float("nan"), True, "many", None, "0%", "0.0%", "101%", "-5%", "%", "27", "2e1%"]
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
    assert tokens_for(budget, np.zeros((tiles, 1), np.float32)) == tokens


def test_adaptive_has_no_number_without_a_map() -> None:
    check_budget("adaptive")
    assert (most_tokens("adaptive", 1024), most_tokens("adaptive", 100)) == (400, 100)
    with pytest.raises(BudgetError):
        fixed_tokens("adaptive", 100)


def test_adaptive_follows_the_formula() -> None:
    relevance = np.zeros((34, 60), np.float32)
    relevance[:8, :16] = 0.5
    entropy = np.log(8 * 16) / np.log(34 * 60)
    assert adaptive_budget(relevance) == round(64 + 336 * entropy)


def test_adaptive_is_small_for_one_spot_and_large_for_many() -> None:
    spot = np.zeros((34, 60), np.float32)
    spot[3, 4] = 1
    spread = np.random.default_rng(0).random((34, 60)).astype(np.float32)
    assert adaptive_budget(spot) == 64
    assert 340 < adaptive_budget(spread) <= 400


def test_adaptive_of_a_flat_map_and_of_small_grids() -> None:
    flat = np.full((34, 60), 0.4, np.float32)
    dust = np.random.default_rng(0).normal(0, 1e-8, flat.shape)
    assert adaptive_budget(flat) == adaptive_budget(flat + dust) == 64
    assert adaptive_budget(np.full((5, 5), 0.4, np.float32)) == 25
    assert adaptive_budget(np.ones((1, 1), np.float32)) == 1
    assert tokens_for("adaptive", np.random.default_rng(0).random((6, 6))) == 36
