"""Strategies: what a map and a number of tokens buy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.allocation.attending import allocate
from arr_coc.allocation.strategies import (
    STRATEGIES,
    AllocationHistory,
    AllocationRequest,
    Magnification,
    choose,
    even_tiles,
)
from arr_coc.errors import BudgetError, NonFiniteError, OptionError, ShapeError, StrategyError
from arr_coc.texture.regions import ABSENT, shape_map

CHOOSING = [name for name in STRATEGIES if name != "auto"]


def blob(rows: int = 34, cols: int = 60) -> torch.Tensor:
    """A soft hill of relevance on a dull ground."""
    row, col = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
    return 0.1 + 0.8 * torch.exp(-((row - rows // 3) ** 2 + (col - cols // 2) ** 2) / 30.0)


def levels_of(relevance: torch.Tensor, *args: object, **options: object) -> np.ndarray:
    allocation = allocate(relevance, *args, **options)
    return shape_map(allocation.regions.numpy(), tuple(relevance.shape))


@pytest.mark.parametrize("strategy", CHOOSING)
@given(rows=st.integers(1, 20), cols=st.integers(1, 20), budget=st.integers(1, 500), seed=st.integers(0, 99))
def test_every_strategy_stays_in_the_budget_and_in_order(
    strategy: str, rows: int, cols: int, budget: int, seed: int
) -> None:
    relevance = torch.from_numpy(np.random.default_rng(seed).random((rows, cols), dtype=np.float32))
    allocation = allocate(relevance, budget, strategy)
    level, row, col = allocation.regions.T
    assert 1 <= allocation.tokens == len(level) <= min(budget, rows * cols)
    assert ((row << level) < rows).all()
    assert ((col << level) < cols).all()
    assert (torch.diff((row << level) * cols + (col << level)) > 0).all()
    assert ((allocation.relevance >= 0) & (allocation.relevance <= 1)).all()
    if budget >= rows * cols:
        assert allocation.tokens == rows * cols


@pytest.mark.parametrize("strategy", CHOOSING)
def test_the_same_inputs_give_the_same_regions(strategy: str) -> None:
    first, second = (allocate(blob(), 200, strategy, seed=3) for _ in range(2))
    assert torch.equal(first.regions, second.regions)


def test_topk_takes_the_best_and_of_equals_the_first() -> None:
    relevance = torch.zeros(3, 4)
    relevance[1, 2] = relevance[2, 3] = 0.9
    assert allocate(relevance, 3, "topk").regions.tolist() == [[0, 0, 0], [0, 1, 2], [0, 2, 3]]
    assert allocate(relevance, 3, "topk").relevance.tolist() == pytest.approx([0, 0.9, 0.9])


def test_mixed_keeps_a_quarter_of_even_coverage() -> None:
    levels = levels_of(blob(), 200, "mixed")
    assert (levels == 0).sum() == 200
    assert (levels[even_tiles((34, 60), 50)] == 0).all()
    best = blob().flatten().topk(140).indices
    assert (levels.ravel()[best.numpy()] == 0).all()
    assert (levels_of(blob(), 200, "mixed", coverage=0.0) == levels_of(blob(), 200, "topk")).all()


def test_foveated_is_fine_at_the_peak_and_covers_all() -> None:
    levels = levels_of(blob(), 273, "foveated")
    assert levels.min() == 0
    assert levels[11, 30] == 0
    assert levels[33, 0] == 2
    assert allocate(blob(), 273, "foveated").tokens >= 271


def test_fixation_is_fine_at_the_peak() -> None:
    levels = levels_of(blob(), 273, "fixation")
    assert levels[11, 30] == 0
    assert levels[33, 0] == levels.max()
    assert not (levels == ABSENT).any()


def fixated(magnification: Magnification | None) -> npt.NDArray[np.int8]:
    request = AllocationRequest(blob(), 273, 0.0, 0, AllocationHistory(), magnification=magnification)
    return choose(request, "fixation").levels.numpy()


def test_a_fixation_follows_its_magnification() -> None:
    """A larger e0 leaves less detail at the peak and more far from it; M0 is a limit below the budget."""
    near, far = fixated(Magnification(0.01)), fixated(Magnification(2.0))
    assert near[11, 30] == 0 < far[11, 30]
    assert near[33, 0] > far[33, 0]
    coarse = fixated(Magnification(0.01, 0.001))
    assert (coarse >= near).all()
    assert coarse[11, 30] > 0
    np.testing.assert_array_equal(fixated(Magnification(0.01, 99.0)), near)


@pytest.mark.parametrize("values", [(0.0,), (-1.0,), (float("nan"),), (0.1, 0.0)])
def test_a_magnification_is_above_0(values: tuple[float, ...]) -> None:
    with pytest.raises(OptionError, match=r"^(e0|M0) must be above 0, got "):
        Magnification(*values)


def test_a_budget_too_small_for_a_cover_takes_the_best_regions() -> None:
    relevance = torch.zeros(200, 300)
    relevance[150, 200] = 1
    for strategy in ("foveated", "fixation"):
        assert allocate(relevance, 1, strategy).regions.tolist() == [[5, 150 >> 5, 200 >> 5]]


@pytest.mark.parametrize(("shape", "count"), [((34, 60), 64), ((34, 60), 255), ((16, 32), 32), ((8, 8), 1)])
def test_even_tiles_have_no_holes_and_no_stripes(shape: tuple[int, int], count: int) -> None:
    tiles = even_tiles(shape, count)
    assert 0 < tiles.sum() <= count
    assert tiles[shape[0] // 2, shape[1] // 2]
    if count > 32:
        side = int(2.5 * (shape[0] * shape[1] / count) ** 0.5)
        for row in range(0, shape[0] - side, side):
            for col in range(0, shape[1] - side, side):
                assert tiles[row : row + side, col : col + side].any()


def test_uniform_has_one_level_and_the_same_number() -> None:
    regions = allocate(blob(), 273, "uniform").regions
    assert len(regions) == 273
    assert regions[:, 0].unique().tolist() == [1]
    assert (levels_of(blob(), 135, "uniform") == 2).all()


def test_random_is_seeded() -> None:
    assert (levels_of(blob(), 64, "random", seed=1) == levels_of(blob(), 64, "random", seed=1)).all()
    assert (levels_of(blob(), 64, "random", seed=1) != levels_of(blob(), 64, "random", seed=2)).any()


def test_auto_is_topk_but_for_a_void() -> None:
    for tokens in (10, 200):
        assert (levels_of(blob(), tokens, "auto") == levels_of(blob(), tokens, "topk")).all()
    noise = torch.from_numpy(np.random.default_rng(0).random((34, 60), dtype=np.float32))
    for void in (noise, torch.full((34, 60), 0.8)):
        assert (levels_of(void, 200, "auto") == levels_of(void, 200, "grid")).all()


@pytest.mark.parametrize("strategy", ["topk", "mixed", "foveated"])
def test_a_share_explores_what_is_neglected(strategy: str) -> None:
    staleness = torch.zeros(34, 60)
    staleness[30:32, 2:4] = 1
    without = levels_of(blob(), 273, strategy)
    explored = levels_of(blob(), 273, strategy, memory=AllocationHistory(staleness=staleness, explore=0.1))
    assert (without[30:32, 2:4] != 0).any()
    assert (explored[30:32, 2:4] == 0).all()
    assert (levels_of(blob(), 273, strategy, memory=AllocationHistory(staleness=staleness)) == without).mean() > 0.99


@pytest.mark.parametrize("strategy", ["topk", "mixed", "foveated"])
def test_small_noise_does_not_move_what_was_shown(strategy: str) -> None:
    rng = np.random.default_rng(0)
    clean = blob()
    before = levels_of(clean, 273, strategy)
    history = AllocationHistory(previous=torch.from_numpy(before))
    noisy = clean + torch.from_numpy(rng.normal(0, 0.04, (34, 60)).astype(np.float32))
    steady = (levels_of(noisy, 273, strategy, memory=history) != before).mean()
    restless = (levels_of(noisy, 273, strategy) != before).mean()
    assert 0.5 * restless > steady


def test_batches_are_padded_and_masked() -> None:
    batch = torch.stack([blob(6, 6), blob(6, 6).flip(0), blob(6, 6).flip(1)])
    allocation = allocate(batch, [4, "adaptive", 9], "topk")
    assert allocation.regions.shape == (3, 36, 3)
    assert allocation.mask.sum(dim=1).tolist() == [4, 36, 9]
    single = allocate(batch[2], 9, "topk")
    assert torch.equal(allocation.regions[2, :9], single.regions)
    assert torch.equal(allocation.relevance[2, :9], single.relevance)
    assert not allocation.regions[2, 9:].any()
    assert allocate(batch, 5, "grid").mask.all()


def test_relevance_may_carry_gradients() -> None:
    assert allocate(blob().requires_grad_(), 64, "topk").tokens == 64


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(StrategyError, match=r"unknown strategy 'best'; there are auto, topk, mixed"):
        allocate(blob(), 64, "best")
    with pytest.raises(BudgetError):
        allocate(blob(), 0)
    with pytest.raises(ShapeError, match="relevance must be"):
        allocate(torch.rand(5), 64)
    with pytest.raises(ShapeError, match="relevance must be"):
        allocate(torch.rand(0, 4), 64)
    with pytest.raises(ShapeError, match="2 budgets were given for 3"):
        allocate(torch.rand(3, 4, 4), [1, 2])
    with pytest.raises(NonFiniteError, match="relevance"):
        allocate(torch.tensor([[0.0, float("nan")]]), 1)
