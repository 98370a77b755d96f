"""Ratios of two versions: of times and of rates, by the names of figures."""

from __future__ import annotations

import pytest

from benchmarks.turns import PROGRAMS, figures_of, ratios_of

RESULT = {"clips": {"hd": {"fps": {"texture": 500.0, "answers": 0.0}, "fps_of_runs": [1.0]}}, "rounds": 2}


def test_figures_are_found_by_their_dotted_names() -> None:
    assert figures_of(RESULT, ("clips.*.fps.*",)) == {"clips.hd.fps.texture": 500.0}, "0 is no figure"


def test_more_than_one_is_slower_for_times_and_for_rates() -> None:
    here = {"cost.median_ms": 12.0, "hd.fps.answers": 200.0, "only here": 1.0}
    there = {"cost.median_ms": 10.0, "hd.fps.answers": 300.0}
    assert ratios_of(here, there) == {"cost.median_ms": pytest.approx(1.2), "hd.fps.answers": pytest.approx(1.5)}


def test_every_program_has_figures_to_compare() -> None:
    assert all(patterns for _, patterns in PROGRAMS.values())
