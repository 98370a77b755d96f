"""Budgets by shadow checks, read off made-up answers."""

from __future__ import annotations

from typing import Any

import pytest

from evaluation import shadow
from stream.extensions.shadow.section import ShadowSection

LEVELS = shadow.LEVELS


def row(number: int, right_from: float, group: str = "") -> dict[str, Any]:
    """A question whose answer is right from a budget on; a token costs 1 GFLOP."""

    def answer(percent: float) -> dict[str, Any]:
        right = percent >= right_from
        return {"text": "a dog" if right else "no", "score": float(right), "tokens": percent, "flops": 1e9 * percent}

    answers = {str(level): answer(level) | {"least": -1.0 if level >= right_from else -9.0} for level in LEVELS}
    odds = dict.fromkeys(shadow.WORDINGS, 0.5)
    return {"id": number, "group": group, "full": answer(100.0), "answers": answers, "odds": odds}


def rule(**changes: Any) -> ShadowSection:
    return ShadowSection(**{"every": 1, "act": True, "window": 4, "agreeing": 50, **changes})


def test_the_budget_goes_up_to_where_answers_agree() -> None:
    run = shadow.act([row(number, LEVELS[2]) for number in range(20)], 0, rule())
    assert (run["checks"], run["raises"], run["lowers"]) == (20, 2, 0)
    assert run["right"] == 16 / 20
    assert run["tokens"] == pytest.approx((2 * LEVELS[0] + 2 * LEVELS[1] + 16 * LEVELS[2]) / 20)
    assert run["gflops"] == pytest.approx(run["tokens"] + 100), "each answer's check has all tokens"


def test_checks_are_charged_and_the_budget_has_a_limit() -> None:
    rows = [row(number, 90.0) for number in range(40)]
    run = shadow.act(rows, 0, rule(every=2, most=2.1))
    assert (run["checks"], run["raises"]) == (20, 2)
    assert run["gflops"] == pytest.approx(run["tokens"] + 50)
    assert shadow.act(rows, len(LEVELS) - 1, rule())["raises"] == 0


def test_pairs_of_two_right_answers_score_higher() -> None:
    rows = [row(number, LEVELS[0] if number % 2 else LEVELS[-1]) for number in range(10)]
    figures = shadow.comparison(rows)
    assert figures["pairs"] == [5, 5]
    assert figures["auc"] == {
        "equal words": 1.0,
        "share of words": 1.0,
        "least likely token": 1.0,
        **dict.fromkeys(shadow.WORDINGS, 0.5),
    }
    assert (figures["false alarms"], figures["found"]) == (0.0, 1.0)


def test_hard_clips_come_in_every_other_block_and_clips_stay_whole() -> None:
    rows = [row(number, 5.0 if number < 24 else 40.0, f"clip {number // 3}") for number in range(48)]
    for kind in ("shuffled", "blocks"):
        for order in shadow.orders(rows, 0, kind):
            assert sorted(entry["id"] for entry in order) == list(range(48))
            assert all(order[at]["group"] == order[at + 2]["group"] for at in range(0, 48, 3))
            if kind == "blocks":
                hard = [entry["id"] >= 24 for entry in order]
                assert hard == [*[False] * 12, *[True] * 12] * 2


def test_a_fixed_budget_between_two_is_read_off_the_line() -> None:
    rows = [row(number, LEVELS[number % 4]) for number in range(40)]
    curve = shadow.fixed_curve(rows)
    assert [point["right"] for point in curve[:4]] == [0.25, 0.5, 0.75, 1.0]
    assert shadow._at(curve, "tokens", curve[1]["tokens"]) == 0.5
    between = (curve[1]["tokens"] * curve[2]["tokens"]) ** 0.5
    assert shadow._at(curve, "tokens", between) == pytest.approx(0.625, abs=1e-3)
    cells = shadow.acting_cells(rows)
    assert {(cell["percent"], cell["order"], cell["every"]) for cell in cells} == {
        (LEVELS[start], kind, interval)
        for start in shadow.STARTS
        for kind in ("shuffled", "blocks")
        for interval in shadow.EVERY
    }
