"""The budget by shadow checks: raises, limits, hysteresis, falls, alarms."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.allocation.attending import Tensions
from arr_coc.allocation.frame import RegionSelector, SelectorOptions
from arr_coc.budget import Budget, TokenLimits
from stream.config import Config
from stream.config_loading import ConfigLayer, build_config
from stream.errors import ConfigError
from stream.events import BudgetChanged, Event, Notice, ShadowCheck
from stream.extensions.latency.budget import LatencyController
from stream.extensions.shadow.budget import LOW, MET, QualityController, ShadowRule
from stream.extensions.shadow.section import ShadowSection
from stream.stages.base import BudgetSetter, FrameLimits
from tests.support.events import answer

RULE = {"window": 4, "raise_above": 0.25, "agreeing": 3, "step": 1.5, "most": 4.0}
TILES = 240


def options(**values: Any) -> ShadowSection:
    return ShadowSection(**{"every": 1, "act": True, **RULE, **values})


def check(differs: bool, number: int = 0) -> ShadowCheck:
    return ShadowCheck(
        answer=number,
        frame_index=10 * number,
        pts_s=float(number),
        query="?",
        text="a",
        full_text="b" if differs else "a",
        same=not differs,
        words=0.0 if differs else 1.0,
        tokens_used=1,
        tokens_full=TILES,
        differs=differs,
    )


def moves(rule: ShadowRule, checks: str, *, raisable: bool = True) -> list[str]:
    """What a rule does at each check: `x` differs, `.` agrees."""
    results = []
    for symbol in checks:
        actions = rule.observe(symbol == "x", raisable=raisable)
        if "raise" in actions or "lower" in actions:
            rule.begin_window()
        results.append(" ".join(actions))
    return results


def test_a_rate_above_the_limit_raises_and_a_lower_one_does_not() -> None:
    rule = ShadowRule(options())
    assert moves(rule, "x.") == ["", ""]
    assert moves(rule, "x") == ["raise"]
    assert rule.level == 1
    assert moves(ShadowRule(options()), "x...x...x...x") == [""] * 13


def test_each_level_has_a_separate_window() -> None:
    rule = ShadowRule(options())
    assert moves(rule, "xx.x") == ["", "raise", "", ""]
    assert (rule.checks, rule.difference_count) == (2, 1)


def test_it_falls_after_checks_in_a_row_that_agree_and_never_below_the_configured_budget() -> None:
    rule = ShadowRule(options())
    assert moves(rule, "xxxx") == ["", "raise", "", "raise"]
    assert moves(rule, "...") == ["", "", "lower"]
    assert moves(rule, "...") == ["", "", "lower"]
    assert rule.level == 0
    assert moves(rule, "......") == [""] * 6


def test_a_check_that_differs_begins_the_row_anew() -> None:
    rule = ShadowRule(options(window=8, lower_below=0.9))
    assert moves(rule, "xxx") == ["", "", "raise"]
    assert moves(rule, "..x...") == [*[""] * 5, "lower"]


def test_a_fall_needs_a_low_rate_beside_the_row() -> None:
    rule = ShadowRule(options(window=8, lower_below=0.2))
    moves(rule, "xxx")
    assert moves(rule, "x.x...") == [""] * 6, "two in six"


def test_a_fall_that_did_not_hold_is_tried_later_and_later() -> None:
    rule = ShadowRule(options())
    moves(rule, "xx")
    counts = []
    for _ in range(6):
        agreed = 0
        while moves(rule, ".") != ["lower"]:
            agreed += 1
        counts.append(agreed + 1)
        assert moves(rule, "xx") == ["", "raise"]
    assert counts == [3, 6, 12, 24, 48, 48]
    assert moves(rule, "xx")[-1] == "raise"
    assert [index for index, actions in enumerate(moves(rule, "." * 60)) if actions] == [47, 50]


def test_without_room_it_raises_an_alarm_once_and_ends_it_once() -> None:
    for rule, raisable in ((ShadowRule(options()), False), (ShadowRule(options(act=False)), True)):
        assert moves(rule, "xxxx", raisable=raisable) == ["", "alarm", "", ""]
        assert moves(rule, "....", raisable=raisable) == ["", "", "", "clear"]
        assert moves(rule, "xx", raisable=raisable)[-1] == "alarm"
        assert rule.level == 0


def controller(budget: Budget = 20, limits: TokenLimits | None = None, **values: Any) -> QualityController:
    return QualityController(options(**values), budget, limits or TokenLimits())


def limits_of(*setters: BudgetSetter, tiles: int = TILES) -> tuple[int | None, int | None]:
    """The budget and the most tokens of a frame, after these setters in turn."""
    limits = FrameLimits()
    for setter in setters:
        limits = setter.limits(tiles, limits)
    return limits.budget, limits.most_tokens


def changes(quality: QualityController, checks: str, tiles: int = TILES) -> list[Event]:
    events: list[Event] = []
    for number, symbol in enumerate(checks):
        first, *rest = quality.on_event(check(symbol == "x", number), tiles)
        assert first == check(symbol == "x", number)
        events += rest
    return events


def steps(events: list[Event]) -> list[tuple[int, int]]:
    return [(event.from_tokens, event.to_tokens) for event in events if isinstance(event, BudgetChanged)]


def test_the_event_says_from_what_to_what_and_why() -> None:
    quality = controller()
    assert limits_of(quality) == (None, None)
    (raised,) = changes(quality, ".xx")
    assert raised == BudgetChanged(
        answer=2, frame_index=20, pts_s=2.0, reason="differ", from_tokens=20, to_tokens=30, differing=2, checks=3
    )
    assert limits_of(quality) == (30, None)
    (lowered,) = changes(quality, "...")
    assert isinstance(lowered, BudgetChanged)
    assert (lowered.reason, lowered.from_tokens, lowered.to_tokens) == ("agree", 30, 20)
    assert (lowered.differing, lowered.checks) == (0, 3)
    assert limits_of(quality) == (None, None)


@pytest.mark.parametrize(
    ("budget", "limits", "tiles", "budgets"),
    [
        (20, TokenLimits(), TILES, [30, 45, 68, 80]),
        (20, TokenLimits(4, 40), TILES, [30, 40]),
        (20, TokenLimits(), 35, [30, 35]),
        (600, TokenLimits(), 2040, []),
        ("10%", TokenLimits(), TILES, [36, 54, 81, 96]),
        ("auto", TokenLimits(), TILES, [98, 146, 219, 240]),
        ("auto", TokenLimits(), 920, [372, 400]),
    ],
)
def test_the_budget_is_bounded(budget: Budget, limits: TokenLimits, tiles: int, budgets: list[int]) -> None:
    """By a factor of the configured one, the most tokens, and the tiles; then there is an alarm."""
    quality = controller(budget, limits)
    events = changes(quality, "x" * 40, tiles)
    assert [to for _, to in steps(events)] == budgets
    alarm = events[-1]
    assert isinstance(alarm, Notice)
    assert (alarm.code, sum(isinstance(event, Notice) for event in events)) == (LOW, 1)
    assert f"the budget of {budgets[-1] if budgets else budget} tokens is too small and its limit" in alarm.message
    ended = changes(quality, "." * 8, tiles)
    assert [event.code for event in ended if isinstance(event, Notice)] == [MET]
    down = [from_tokens for from_tokens, _ in steps(changes(quality, "." * 40, tiles))]
    assert down == sorted(down, reverse=True)
    assert limits_of(quality, tiles=tiles) == (None, None)


def test_without_acting_it_only_warns() -> None:
    quality = controller(act=False)
    (alarm,) = changes(quality, "xxxx")
    assert isinstance(alarm, Notice)
    assert alarm.message == (
        "2 of the last 2 shadow checks differ from the answer of all tokens: the budget of 20 tokens is too small; "
        "raise --budget, or give --shadow-act"
    )
    assert limits_of(quality) == (None, None)


def test_of_an_adaptive_budget_the_most_tokens_rise() -> None:
    quality = controller("adaptive", TokenLimits(8, 40))
    assert steps(changes(quality, "xxxx")) == [(40, 60), (60, 90)]
    assert limits_of(quality) == (None, 90)
    selector = RegionSelector(SelectorOptions("topk", Tensions("adaptive", limits=TokenLimits(8, 40))))
    spread = torch.linspace(0, 1, TILES).reshape(12, 20)
    before, after = (selector.plan(spread, "adaptive", most).tokens for most in (None, 90))
    assert 8 < before <= 40 < after <= 90
    assert selector.plan(spread, "adaptive", 12).tokens == 12, "a latency target still limits it"


def test_with_a_latency_target_the_limit_of_its_budget_rises() -> None:
    limits = TokenLimits(8, 40)
    quality = QualityController(options(), 40, limits, adaptive=True)
    latency = LatencyController(100.0, 40, limits)
    assert limits_of(quality, latency) == (40, 40)
    events = changes(quality, "xx")
    assert steps(events) == [(40, 60)]
    assert limits_of(quality, latency) == (40, 40), "more tokens are allowed, and time decides"
    assert latency.limits(TILES, FrameLimits(most_tokens=20)).most_tokens == 20
    assert limits_of(quality, latency) == (40, 40)


def test_events_other_than_checks_are_passed_on() -> None:
    point = answer(1.0, "a")
    assert controller().on_event(point, TILES) == [point]
    assert LatencyController(100.0, 40).on_event(check(True), TILES) == [check(True)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shadow.act": True}, "goes by shadow checks; give --shadow-every too"),
        ({"shadow.every": 5, "shadow.act": True, "answer.encode": "weighted"}, "weighted ignores"),
        (
            {"shadow.every": 5, "shadow.compare": "meaning", "answer.choices": "a,b"},
            "answers with a schema are compared by their words",
        ),
        ({"shadow.every": 5, "shadow.lower_below": 0.5}, "lower_below = 0.5 is more than .* = 0.25"),
        ({"shadow.every": 5, "shadow.raise_above": 0.1}, "lower_below = 0.15 is more than .* = 0.1"),
        ({"shadow.every": 5, "shadow.step": 1.0}, "should be more than 1"),
        ({"shadow.every": 5, "shadow.most": 0.5}, "should be 1 or more"),
        ({"shadow.every": 5, "shadow.agree": 1.5}, "should be at most 1"),
        ({"shadow.every": 5, "shadow.window": 0}, "should be 1 or more"),
        ({"shadow.every": 5, "shadow.compare": "sound"}, "should be 'words' or 'meaning'"),
        ({"answer.shadow_every": 5}, "unknown key answer.shadow_every; did you mean shadow.every"),
    ],
)
def test_invalid_options_are_refused_in_one_line(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        build_config([ConfigLayer("x", values)])
    assert "\n" not in str(refused.value)


def test_by_default_nothing_is_checked_and_nothing_acts() -> None:
    shadow = ShadowSection.of(Config())
    assert (shadow.every, shadow.act, shadow.compare) == (None, False, "words")
