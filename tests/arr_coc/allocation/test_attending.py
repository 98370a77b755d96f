"""The semantic-void guard: what is structure, in a map and in a picture, and what is none."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.allocation.attending import (
    STRATEGIES,
    VOID_STRUCTURE,
    AllocationHistory,
    allocate,
    even_tiles,
    map_structure,
    picture_structure,
)
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
from arr_coc.errors import BudgetError, NonFiniteError, ShapeError, StrategyError
from arr_coc.relevance.channels import image_texture
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


def test_auto_follows_the_model_and_the_semantic_void() -> None:
    assert (levels_of(blob(), 200, "auto", levels=True) == levels_of(blob(), 200, "foveated")).all()
    assert (levels_of(blob(), 200, "auto") == levels_of(blob(), 200, "mixed")).all()
    assert (levels_of(blob(), 64, "auto", levels=True) == levels_of(blob(), 64, "foveated")).all()
    assert (levels_of(blob(), 63, "auto", levels=True) == levels_of(blob(), 63, "mixed")).all()
    noise = torch.from_numpy(np.random.default_rng(0).random((34, 60), dtype=np.float32))
    for void in (noise, torch.full((34, 60), 0.8)):
        assert (levels_of(void, 200, "auto", levels=True) == levels_of(void, 200, "grid")).all()


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


ROWS, COLS = 12, 20


def test_an_object_and_a_single_tile_are_structure() -> None:
    blob = np.full((34, 60), 0.1, np.float32)
    blob[10:20, 20:40] = 0.7
    spot = np.full((34, 60), 0.1, np.float32)
    spot[7, 8] = 0.9
    assert map_structure(torch.from_numpy(blob)) > 0.8
    assert map_structure(torch.from_numpy(spot)) > 0.8


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_none(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for noise in (rng.random((34, 60)), rng.normal(0.5, 0.1, (34, 60)), rng.random((6, 6))):
        assert map_structure(torch.from_numpy(noise.astype(np.float32))) < VOID_STRUCTURE


def test_flat_maps_and_tiny_grids_have_none() -> None:
    assert map_structure(torch.full((34, 60), 0.5)) == 0
    assert map_structure(torch.linspace(0.5, 0.54, 2040).reshape(34, 60)) == 0
    assert map_structure(torch.tensor([[0.0, 1.0, 0.0]])) == 0


def test_a_map_that_only_dips_is_judged_by_its_coherence() -> None:
    dip = torch.ones(8, 8)
    dip[2:6, 2:6] = 0
    assert map_structure(dip) > VOID_STRUCTURE


def looks_of(picture: np.ndarray) -> torch.Tensor:
    """Appearance of a picture uint8 [H, W, 3] that the guard judges: float32 [7, gh, gw]."""
    return image_texture(torch.from_numpy(picture).permute(2, 0, 1)[None]).looks[0]


def drops(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    picture = np.full((ROWS * 32, COLS * 32, 3), 200, np.uint8)
    for _ in range(1500):
        centre = (int(rng.integers(COLS * 32)), int(rng.integers(ROWS * 32)))
        cv2.circle(picture, centre, int(rng.integers(1, 10)), [int(v) for v in rng.integers(0, 256, 3)], -1)
    return picture


def slope(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(COLS * 32), np.arange(ROWS * 32))
    light = 40 + 120 * x / x.max() + rng.uniform(0, 60) * y / y.max()
    return np.clip(light[..., None] + rng.normal(0, 3, (*light.shape, 3)), 0, 255).astype(np.uint8)


def spot(seed: int) -> np.ndarray:
    """Light that falls off from a place as a cone, which no surface of second order fits."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(-1, 1, COLS * 32), np.linspace(-1, 1, ROWS * 32))
    light = 230 - 90 * np.hypot(x - rng.uniform(-0.4, 0.4), y - rng.uniform(-0.4, 0.4))
    return np.clip(light[..., None] + rng.normal(0, 2, (*light.shape, 3)), 0, 255).astype(np.uint8)


def white_noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (ROWS * 32, COLS * 32, 3), dtype=np.uint8)


def blank(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.clip(rng.normal(rng.uniform(20, 230), 3, (ROWS * 32, COLS * 32, 3)), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("picture", [white_noise, drops, slope, spot, blank])
def test_voids_have_no_structure(picture: Callable[[int], np.ndarray], seed: int) -> None:
    assert picture_structure(looks_of(picture(seed))) < VOID_STRUCTURE - 0.05


@pytest.mark.parametrize("ground", [slope, blank])
def test_one_small_thing_on_a_void_is_structure(ground: Callable[[int], np.ndarray]) -> None:
    picture = ground(0)
    cv2.circle(picture, (COLS * 20, ROWS * 12), 18, (230, 40, 40), -1)
    assert picture_structure(looks_of(picture)) > VOID_STRUCTURE + 0.05


def test_a_page_of_print_is_structure_though_its_relevance_is_even() -> None:
    rng = np.random.default_rng(0)
    picture = np.full((ROWS * 32, COLS * 32, 3), 240, np.uint8)
    for y in range(40, ROWS * 32 - 40, 14):
        x = 40
        while x < COLS * 32 - 40:
            word = int(rng.integers(12, 60))
            picture[y : y + 8, x : min(x + word, COLS * 32 - 40) : 3] = 30
            x += word + 8
    assert picture_structure(looks_of(picture)) > VOID_STRUCTURE + 0.05


def test_a_picture_of_few_tiles_is_not_judged() -> None:
    assert picture_structure(torch.zeros(7, 6, 6)) == 1


@pytest.mark.parametrize("shape", [(2, 40), (40, 2), (1, 64), (64, 1)])
def test_a_strip_can_be_judged(shape: tuple[int, int]) -> None:
    appearance = torch.from_numpy(np.random.default_rng(0).random((7, *shape), np.float32))
    assert 0 <= picture_structure(appearance) <= 1
