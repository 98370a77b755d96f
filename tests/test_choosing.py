from __future__ import annotations

import numpy as np
import pytest

from arr_coc.attending import Tensions
from arr_coc.budget import adaptive_budget
from arr_coc.choosing import UNKNOWN, VOID_HYSTERESIS, RegionChooser, jitter_share
from arr_coc.errors import BudgetError
from arr_coc.structure import VOID_STRUCTURE, structure


def blob(height: float = 0.8, col: int = 30) -> np.ndarray:
    rows, cols = np.indices((34, 60))
    return (0.1 + height * np.exp(-((rows - 11) ** 2 + (cols - col) ** 2) / 30)).astype(np.float32)


def noise(scale: float = 1) -> np.ndarray:
    return (0.5 + scale * (np.random.default_rng(0).random((34, 60)) - 0.5)).astype(np.float32)


def test_the_same_maps_keep_the_choice() -> None:
    chooser, relevance, neglect = RegionChooser("foveated", Tensions()), blob(), blob(col=5)
    first = chooser.choose(relevance, 273, neglect)
    again = chooser.choose(relevance, 273, neglect)
    assert again.allocation is first.allocation
    assert again is chooser.choose(relevance, 273, neglect)
    for changed in ((blob(), 273, neglect), (relevance, 200, neglect), (relevance, 273, blob(col=50))):
        assert chooser.choose(*changed).allocation is not first.allocation


def test_jitter_is_counted_against_the_carried_map() -> None:
    chooser = RegionChooser("topk", Tensions(explore=0))
    assert chooser.choose(blob(), 100, None).jitter_share == 0
    elsewhere = blob(col=40)
    assert 0.02 < chooser.choose(elsewhere, 100, None).jitter_share < 0.1
    assert chooser.choose(elsewhere, 100, None).jitter_share == 0
    assert chooser.choose(blob(col=40), 100, None).jitter_share == 0
    chooser.carry(0, 5)
    assert chooser.choose(blob(col=45), 100, None).jitter_share == 0


def test_jitter_leaves_out_what_came_into_view() -> None:
    before, now = np.array([[0, 1, -1, UNKNOWN]], np.int8), np.array([[0, 2, -1, 0]], np.int8)
    assert jitter_share(before, now) == pytest.approx(1 / 3)
    assert jitter_share(None, now) == 0
    assert jitter_share(np.full((1, 4), UNKNOWN, np.int8), now) == 0


def test_carrying_before_the_first_frame_is_nothing() -> None:
    chooser = RegionChooser("topk", Tensions())
    chooser.carry(1, 1)
    assert chooser.choose(blob(), 10, None).jitter_share == 0


def test_the_void_guard_does_not_flutter() -> None:
    chooser = RegionChooser("auto", Tensions(), levels=True)
    assert chooser.choose(noise(), 273, None).strategy == "grid"
    between = noise() + np.float32(1.5) * blob()
    assert VOID_STRUCTURE - VOID_HYSTERESIS < structure(between) < VOID_STRUCTURE + VOID_HYSTERESIS
    assert chooser.choose(between, 273, None).strategy == "grid"
    assert chooser.choose(blob(), 273, None).strategy == "foveated"
    assert chooser.choose(between, 273, None).strategy == "foveated"
    assert chooser.choose(noise(0.02), 273, None).strategy == "grid"


def test_a_limit_holds_whatever_the_budget_means_and_can_be_lifted() -> None:
    chooser, wide = RegionChooser("topk", Tensions(budget="adaptive")), blob()
    free = adaptive_budget(wide)
    assert [chooser.choose(wide, "adaptive", None, limit).allocation.tokens for limit in (70, 400, None, 80)] == [
        70,
        free,
        free,
        80,
    ]
    assert chooser.choose(wide, 273, None, 100).allocation.tokens == 100
    with pytest.raises(BudgetError):
        chooser.choose(wide, "adaptive", None, 0)


def test_an_adaptive_budget_moves_only_for_a_reason() -> None:
    chooser = RegionChooser("topk", Tensions(budget="adaptive"))
    first = chooser.choose(blob(), "adaptive", None)
    tokens = first.allocation.tokens
    assert tokens == adaptive_budget(blob())
    assert chooser.choose(blob(0.79), "adaptive", None).allocation.tokens == tokens
    wide = np.maximum(blob(), np.maximum(blob(col=5), blob(col=55)))
    assert chooser.choose(wide, "adaptive", None).allocation.tokens == adaptive_budget(wide) > 1.05 * tokens
    kept = chooser.choose(wide, "adaptive", None)
    assert chooser.choose(wide, "adaptive", None).allocation.tokens == kept.allocation.tokens


def test_budgets_that_are_none() -> None:
    with pytest.raises(BudgetError):
        RegionChooser("topk", Tensions()).choose(blob(), 0, None)
