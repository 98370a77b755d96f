"""What a threshold of escalation gives, read off made-up answers."""

from __future__ import annotations

from typing import Any

import pytest

from evaluation.escalation import answer, auc, figures_at, packets_of
from evaluation.suites import named_suite
from tests.support.models import tiny_qwen


def row(least: float, first: float, other: float) -> dict[str, Any]:
    asked = {"score": first, "least": least, "flops": 100, "scoring_flops": 10}
    return {"group": str(least), "first": asked, "other": {"score": other, "flops": 400}}


ROWS = [row(0.2, 0.0, 1.0), row(0.4, 0.0, 0.0), row(0.6, 1.0, 0.0), row(0.8, 1.0, 1.0)]


def test_a_threshold_escalates_the_answers_below_it() -> None:
    none, some, all_of_them = (figures_at(threshold, ROWS) for threshold in (0.0, 0.5, 1.01))
    assert (none["escalated"], none["right"], none["flops"]) == (0.0, 0.5, 1.0)
    assert (some["escalated"], some["right"], some["flops"]) == (0.5, 0.75, 3.1)
    assert (some["random"], some["best"]) == (0.5, 0.75)
    assert some["gain"][0] == pytest.approx(0.25)
    assert (all_of_them["escalated"], all_of_them["right"], all_of_them["flops"]) == (1.0, 0.5, 5.1)


def test_right_answers_are_likelier_than_wrong_ones() -> None:
    assert auc(ROWS) == 1.0
    assert auc([row(0.5, 1.0, 1.0), row(0.5, 0.0, 1.0)]) == 0.5


def test_an_answer_is_scored_in_a_pass_of_its_own() -> None:
    qwen = tiny_qwen()
    (pending,) = named_suite("still", 1, "choose").questions()
    question = pending.load()
    figures = answer(qwen, packets_of(qwen, question), question)
    assert 0 <= figures["least"] < 1
    assert 0 < figures["scoring_flops"] < figures["flops"]
