"""Budgets by a head, read off made-up answers."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.learned_budget import FEW, FIXED, MANY, Answers, compare, predict


def answers(seed: int, count: int = 400) -> Answers:
    """Questions of two suites of which the first of two inputs says whether many tokens gain."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 2))
    gains = (inputs[:, 0] > 0.5).astype(float)
    few = (random.random(count) < 0.5) * (1 - gains)
    scores = {FEW: few, FIXED: few, MANY: few + gains}
    tokens = {name: np.full(count, share) for name, share in ((FEW, 10.0), (FIXED, 20.0), (MANY, 30.0))}
    suites = np.array(["still", "text"] * (count // 2))
    return Answers(scores, tokens, inputs, gains, suites, [f"{suite} {number}" for number, suite in enumerate(suites)])


def test_a_head_finds_the_questions_that_gain() -> None:
    reported = answers(1)
    predicted, _ = predict(answers(0), reported, slice(None))
    figures = compare(reported, predicted, reported.suites)
    assert figures["head"] == figures["best"] > figures["random"] > figures["fixed"]
    low, high = figures["head - fixed"][1:]
    assert 0 < low < figures["head - fixed"][0] < high


def test_an_input_that_says_nothing_is_worth_chance() -> None:
    reported = answers(1)
    predicted, _ = predict(answers(0), reported, slice(1, None))
    figures = compare(reported, predicted, reported.suites)
    assert figures["head"] == pytest.approx(figures["random"], abs=0.05)


def test_no_way_spends_more_than_the_fixed_budget() -> None:
    reported = answers(2)
    figures = compare(reported, reported.gains, reported.suites)
    assert max(figures["tokens"].values()) == figures["tokens"]["fixed"] == 20.0
