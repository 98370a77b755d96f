"""Scores by which an answer counts as nothing new: the figures, a few answers, and the committed ones."""

from __future__ import annotations

import json
import math

from arr_coc.qwen.loading import load_qwen
from evaluation.news import RESULTS, auc, measure_cases, report
from stream.config import AnswerConfig


def case(least: float, *, changed: bool, equal: bool = False, part: str = "sign") -> dict[str, object]:
    scores = {"mean": 0.0, "product": 0.0, "still right?": 0.0, "is it …?": 0.0, "still true?": 0.0}
    right = {"history 0": 1.0, "history 1": 0.0, "history 3": 1.0}
    return {"part": part, "changed": changed, "equal": equal, "least": math.log(least), **scores, **right}


CASES = [case(0.8, changed=False, equal=True), case(0.4, changed=False, equal=True), case(0.4, changed=True)]


def test_auc_counts_pairs() -> None:
    assert auc(CASES, "least") == 0.75
    assert auc(CASES, "mean") == 0.5
    assert auc(CASES[:2], "least") is None


def test_silence_is_by_the_score_or_word_for_word() -> None:
    figures = report([*CASES, {"part": "sign", "history 0": 1.0, "history 1": 1.0, "history 3": 1.0}])
    assert figures["cases"] == {"all": [3, 1], "moving": [0, 0], "sign": [3, 1], "still": [0, 0], "event": [0, 0]}
    assert figures["thresholds"]["0.5"] == {"silent": 1.0, "of these by the check": 0.5, "stale": 0.0}
    assert figures["thresholds"]["0.3"] == {"silent": 1.0, "of these by the check": 1.0, "stale": 1.0}
    assert figures["history"] == {"0": 1.0, "1": 0.25, "3": 1.0}


def test_the_same_question_again_is_a_case() -> None:
    first, *others = measure_cases(load_qwen(), 3, 0.1)
    assert "changed" not in first
    assert {"history 0", "history 1", "history 3"} < first.keys()
    repeats = [case for case in others if "changed" in case]
    assert repeats
    assert all(case["least"] <= case["mean"] <= 0 and isinstance(case["equal"], bool) for case in repeats)


def test_the_committed_figures_hold_the_default() -> None:
    figures = json.loads(RESULTS.read_text("utf-8"))
    default = figures["thresholds"][str(AnswerConfig().same_above)]
    assert default["silent"] >= 0.9
    assert default["stale"] <= 0.05
    assert figures["auc"]["least"]["all"] >= 0.95 > 0.6 >= figures["auc"]["still right?"]["all"]
