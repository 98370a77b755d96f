from __future__ import annotations

import numpy as np
import pytest

from arr_coc.budget import adaptive_budget, check_budget, tokens_for
from arr_coc.errors import BudgetError


@pytest.mark.parametrize("budget", [0, -3, 2.5, float("nan"), True, "many", None])
def test_budgets_that_are_none(budget: object) -> None:
    with pytest.raises(BudgetError, match="whole number of at least 1"):
        check_budget(budget, 100)


def test_a_budget_beyond_the_frame_is_clamped() -> None:
    assert check_budget(273, 100) == 100
    assert check_budget(np.int64(64), 100) == 64


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
