"""How often a yes is wrong: the figures, and the committed ones."""

from __future__ import annotations

import json

from arr_coc.hub import bundled_model_path
from arr_coc.qwen.yes_no import NEUTRAL, Calibration
from evaluation.presence import RESULTS, auc, rates, report
from stream.config import WatchConfig
from training.calibration import MeasuredOdds

FOUND = [
    *(MeasuredOdds("present", "?", odds) for odds in (5.0, 3.0, 1.0, -1.0)),
    *(MeasuredOdds("absurd", "?", odds) for odds in (2.0, 0.5, -3.0, -4.0)),
]


def test_rates_count_looks_from_the_thresholds_on() -> None:
    plain = rates(FOUND, NEUTRAL, WatchConfig(question="is it?"))
    assert plain == {"present": {"true_yes": 0.75, "surely": 0.5}, "absurd": {"false_yes": 0.5, "surely": 0.0}}
    lowered = rates(FOUND, Calibration(1.0, -2.0), WatchConfig(question="is it?"))
    assert lowered == {"present": {"true_yes": 0.5, "surely": 0.25}, "absurd": {"false_yes": 0.0, "surely": 0.0}}


def test_auc_counts_pairs() -> None:
    assert auc(FOUND, "absurd") == round(13 / 16, 3)
    assert auc([MeasuredOdds("present", "?", 1.0), MeasuredOdds("absent", "?", 1.0)], "absent") == 0.5
    assert auc(FOUND, "shape") is None


def test_the_report_names_what_is_refused() -> None:
    result = report(FOUND, [False] * 4 + [True] * 3 + [False], Calibration(1.0, -2.0))
    assert result["unseen"] == {"present": 0.0, "absurd": 0.75}
    assert result["questions"]["absurd"] == 4
    assert result["before"]["absurd"]["false_yes"] > result["after"]["absurd"]["false_yes"]


def test_the_committed_figures_are_of_the_committed_calibration() -> None:
    result = json.loads(RESULTS.read_text("utf-8"))
    config = json.loads((bundled_model_path() / "config.json").read_text("utf-8"))
    assert result["calibration"] == config["arr_coc_yes_no"]
    for kind in ("absent", "colour", "shape", "absurd"):
        assert result["after"][kind]["false_yes"] < 0.5 * result["before"][kind]["false_yes"]
    assert result["after"]["present"]["true_yes"] >= 0.9
    assert result["unseen"]["absurd"] == 1.0
    assert result["unseen"]["present"] == 0.0
