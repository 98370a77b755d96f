"""The budget that holds a latency, against made-up loads: an answer takes base + slope x tokens, times noise."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.allocation.latency_budget import LOW, BudgetController
from arr_coc.budget import TokenLimits
from arr_coc.errors import BudgetError

TARGET_MS = 500.0
SETTLED = 10
"""Answers after a step of load by which the budget has come to rest."""


@dataclass
class Load:
    """Answers of a machine, `delay` of which are on their way when a budget is given."""

    control: BudgetController
    noise: float = 0.05
    exponential: bool = False
    outliers: float = 0.0
    delay: int = 0
    tiles: int = 1024
    seed: int = 0
    verdicts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._coming = [self.control.budget_for(self.tiles)] * (self.delay + 1)

    def run(self, base_ms: float, slope_ms: float, answers: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens and the times of `answers` answers."""
        tokens, times = [], []
        for _ in range(answers):
            budget = self._coming.pop(0)
            ttft_ms = (base_ms + slope_ms * budget) * self._noise()
            verdict = self.control.observe(ttft_ms, budget, self.tiles)
            self.verdicts += [] if verdict is None else [verdict]
            self._coming.append(self.control.budget_for(self.tiles))
            tokens.append(budget)
            times.append(ttft_ms)
        return np.array(tokens), np.array(times)

    def _noise(self) -> float:
        scatter = self._random.exponential() if self.exponential else self._random.normal()
        return max(0.3, 1 + self.noise * scatter) * (8 if self._random.random() < self.outliers else 1)


def load(start: int = 273, target_ms: float = TARGET_MS, **settings: object) -> Load:
    return Load(BudgetController(target_ms, start), **settings)  # type: ignore[arg-type]


def turns(tokens: np.ndarray) -> int:
    """Number of times that the budget changed its direction."""
    moves = np.sign(np.diff(tokens))
    return int(np.count_nonzero(np.diff(moves[moves != 0])))


STEPS = {
    "all of it grows with tokens": ((0, 2), (0, 4)),
    "only the base rises": ((100, 1), (300, 1)),
    "four times slower": ((50, 1), (180, 4)),
    "twice as slow": ((50, 2), (100, 4)),
    "a fifth slower": ((50, 2), (50, 2.4)),
    "steep": ((10, 5), (10, 2.5)),
    "hardly any slope": ((300, 0.3), (400, 0.3)),
}


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_load_settles_within_ten_answers(step: str, delay: int) -> None:
    before, after = STEPS[step]
    for seed in range(4):
        machine = load(noise=0.03, seed=seed, delay=delay)
        for base_ms, slope_ms in (before, after, before):
            tokens, times = machine.run(base_ms, slope_ms, SETTLED + delay + 30)
            rest = slice(SETTLED + delay, None)
            middle = np.median(tokens[rest])
            assert max(tokens[rest].max() / middle, middle / tokens[rest].min()) < 1.3, (seed, tokens)
            assert turns(tokens[rest]) <= 1, (seed, tokens)
            assert np.mean(times[rest] > TARGET_MS) <= 0.1, (seed, times)
            assert middle == 400 or np.median(times[rest]) > 0.74 * TARGET_MS, (seed, times)


@given(
    base_ms=st.floats(1, 400),
    slope_ms=st.floats(0, 8),
    start=st.integers(64, 400),
    factor=st.floats(0.4, 2.5),
)
def test_without_noise_it_ends_in_the_band_or_at_a_limit(
    base_ms: float, slope_ms: float, start: int, factor: float
) -> None:
    machine = load(start, noise=0)
    for scale in (1.0, factor):
        tokens, times = machine.run(base_ms * scale, slope_ms * scale, SETTLED + 5)
        assert np.ptp(tokens[SETTLED:]) == 0
        assert np.abs(np.diff(np.log2(tokens))).max() < 1.02
        assert times[-1] <= TARGET_MS * 1.001 or tokens[-1] == 64
        assert times[-1] >= 0.9 * LOW * TARGET_MS or tokens[-1] == 400


@pytest.mark.parametrize(("took_ms", "tokens"), [(2000.0, 20), (50.0, 90)])
def test_a_budget_stays_within_the_limits_that_are_given(took_ms: float, tokens: int) -> None:
    control = BudgetController(TARGET_MS, 300, TokenLimits(20, 90))
    assert control.budget_for(1024) == 90
    verdicts = [control.observe(took_ms, control.budget_for(1024), 1024) for _ in range(20)]
    assert (control.budget_for(1024), "missed" in verdicts) == (tokens, tokens == 20)


@pytest.mark.parametrize(
    "settings", [{"noise": 0.1}, {"noise": 0.2, "exponential": True}, {"noise": 0.05, "outliers": 0.02}]
)
def test_p95_is_held_below_the_target_whatever_the_scatter(settings: dict[str, object]) -> None:
    times = np.concatenate([load(seed=seed, **settings).run(50, 2, 200)[1][SETTLED:] for seed in range(4)])
    assert np.mean(times > TARGET_MS) < 0.05


def test_answers_that_are_alone_in_being_late_move_nothing() -> None:
    machine = load(noise=0.02)
    machine.run(50, 2, 40)
    before = machine.control.budget_for(1024)
    for late in (8.0, 1.0, 1.0, 8.0, 8.0, 1.0, 1.0):
        machine.control.observe(late * (50 + 2 * before), before, 1024)
        assert machine.control.budget_for(1024) == before


def test_the_first_answer_may_be_slow_and_is_not_trusted_alone() -> None:
    control = BudgetController(TARGET_MS, 200)
    for ttft_ms in (4000.0, 430.0, 435.0, 425.0, 430.0):
        control.observe(ttft_ms, 200, 1024)
        assert control.budget_for(1024) == pytest.approx(200, rel=0.1)


def test_tokens_that_cost_nothing_are_given() -> None:
    tokens, _ = load(64).run(300, 0, 20)
    assert tokens[-1] == 400


def test_a_target_out_of_reach_is_reported_once_and_once_more_when_reached() -> None:
    machine = load()
    machine.run(100, 1.2, 40)
    assert machine.verdicts == []
    tokens, _ = machine.run(480, 1.2, 60)
    assert (machine.verdicts, tokens[-1]) == (["missed"], 64)
    tokens, _ = machine.run(100, 1.2, 60)
    assert machine.verdicts == ["missed", "met"]
    assert tokens[-1] > 200


def test_a_budget_that_is_not_used_up_is_learned_from_as_it_was_used() -> None:
    control = BudgetController(TARGET_MS, 273)
    for tokens in (100, 120, 80, 110, 90, 100, 95, 105, 115, 85):
        control.observe(50 + 2 * tokens, tokens, 1024)
    assert control.budget_for(1024) == pytest.approx((0.93 * TARGET_MS - 50) / 2, rel=0.15)


def test_small_frames_are_never_given_more_than_their_tiles() -> None:
    machine = load(tiles=40)
    tokens, _ = machine.run(10, 1, 10)
    assert set(tokens) == {40}
    assert machine.verdicts == []
    machine.run(600, 1, 10)
    assert machine.verdicts == ["missed"]
    assert machine.control.budget_for(1024) == 64


def test_a_time_that_is_none_is_left_out() -> None:
    control, other = BudgetController(TARGET_MS), BudgetController(TARGET_MS)
    for ttft_ms in (900.0, float("nan"), -5.0, 0.0, float("inf"), 910.0, 905.0, 900.0):
        assert control.observe(ttft_ms, 273, 1024) is None
        if ttft_ms >= 900 and np.isfinite(ttft_ms):
            other.observe(ttft_ms, 273, 1024)
    assert control.budget_for(1024) == other.budget_for(1024) < 273


@pytest.mark.parametrize("target_ms", [0, -1.0, float("nan"), float("inf")])
def test_a_target_that_is_none(target_ms: float) -> None:
    with pytest.raises(BudgetError, match="milliseconds above 0"):
        BudgetController(target_ms)


def test_p95_is_estimated_for_any_number_of_tokens() -> None:
    control = BudgetController(TARGET_MS)
    assert control.p95_ms(64) is None
    machine = Load(control, noise=0.02)
    machine.run(50, 2, 40)
    assert control.p95_ms(64) == pytest.approx(1.04 * (50 + 2 * 64), rel=0.15)
