"""Ratios of small weights to floating point."""

from __future__ import annotations

from benchmarks.small_weights import agreement, report_of
from benchmarks.support.whole_runs import MEASURED_MS, RunFigures


def figures(scale: float, peak_mib: float) -> RunFigures:
    return RunFigures("", 10, [dict.fromkeys(MEASURED_MS, scale)], [scale], [scale], {"answers": peak_mib}, [0])


def test_ratios_are_to_bfloat16_and_for_the_first_token_to_the_better_one() -> None:
    runs = {"float32": [figures(20.0, 900.0)], "bfloat16": [figures(40.0, 400.0)], "int4": [figures(10.0, 100.0)]}
    assert report_of(runs)["ratios"] == {"int4": {"tokens": 4.0, "first_token": 0.5, "cpu": 0.5, "memory": 0.25}}
    assert "ratios" not in report_of(runs | {"float32": []})


def test_agreement_is_the_first_token_and_what_is_common() -> None:
    same = [[1, 2, 3, 4], [5, 6]]
    result = agreement({"float32": same, "bfloat16": same, "int8": [[1, 2, 9, 4], [7, 6]]})
    assert result == {
        "bfloat16, float32": {"answers": 2, "first_token": 1.0, "mean_prefix": 3.0},
        "int8, bfloat16": {"answers": 2, "first_token": 0.5, "mean_prefix": 1.0},
        "int8, float32": {"answers": 2, "first_token": 0.5, "mean_prefix": 1.0},
    }
    assert agreement({"int8": same}) == {}
