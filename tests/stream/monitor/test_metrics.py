"""Each figure against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.monitor.metrics import (
    Percentiles,
    deadline_misses_percent,
    frames_per_second,
    interarrival_ms,
    interval_std_ms,
    jitter,
    peak_to_peak_ms,
    slope_per_hour,
    tail_ms,
    trimmed,
)

MS = 1_000_000


def ns(*values_ms: float) -> np.ndarray:
    return np.array([round(value * MS) for value in values_ms], dtype=np.int64)


def test_percentiles_interpolate_and_keep_the_maximum() -> None:
    assert Percentiles.of(np.arange(101)) == Percentiles(50, 95, 99, 100)
    assert Percentiles.of([]) is None


def test_frames_a_second_counts_intervals() -> None:
    assert frames_per_second(ns(0, 10, 20, 30)) == pytest.approx(100)
    assert frames_per_second(ns(5)) is None
    assert frames_per_second(ns(5, 5)) is None


def test_interarrival_follows_rfc_3550() -> None:
    assert interarrival_ms(ns(0, 10, 36, 46), ns(0, 10, 20, 30)) == pytest.approx(16 / 16 * 15 / 16)


def test_interval_std_measures_the_deviation_of_gaps() -> None:
    assert interval_std_ms(ns(0, 12, 20), ns(0, 10, 20)) == pytest.approx(2)


@given(st.lists(st.integers(1, 1000), min_size=3, max_size=30), st.integers(0, 10**6))
def test_a_variable_frame_rate_is_not_jitter(gaps_ms: list[int], late_ms: int) -> None:
    pts = ns(0, *np.cumsum(gaps_ms).tolist())
    out = pts + late_ms * MS
    assert interarrival_ms(out, pts) == 0
    assert interval_std_ms(out, pts) == 0


def test_tail_and_peak_to_peak_are_of_latency() -> None:
    latency = np.arange(101, dtype=np.float64)
    assert tail_ms(latency) == pytest.approx(49)
    assert peak_to_peak_ms(latency) == 100


def test_a_frame_exactly_one_period_late_is_in_time() -> None:
    assert deadline_misses_percent(np.array([5.0, 10.0, 10.5, 20.0]), 10.0) == 50


def test_jitter_takes_the_period_from_the_median_gap() -> None:
    pts = ns(0, 10, 20, 30, 1000)
    values = jitter(pts, pts + ns(1, 1, 11, 1, 1), pts)
    assert values is not None
    assert values.deadline_misses_percent == 20
    assert values.peak_to_peak_ms == 10
    assert jitter(pts[:2], pts[:2], pts[:2]) is None


def test_the_first_and_last_second_are_left_out_if_there_is_a_middle() -> None:
    at = ns(0, 500, 1000, 2000, 3000, 3500, 4000)
    assert trimmed(at).tolist() == [False, False, True, True, True, False, False]
    assert trimmed(ns(0, 2900)).all()
    assert trimmed(ns(0, 500, 1000, 2000, 3000, 3500, 4000), 2.0).tolist() == [False] * 3 + [True, True, False, False]
    assert trimmed(ns(0, 3900), 2.0).all()
    assert trimmed(ns()).size == 0


def test_a_slope_is_the_line_through_a_minute_or_more() -> None:
    at = ns(*range(0, 120_001, 1000))
    rising = np.arange(at.size) * 0.5
    assert slope_per_hour(at, rising) == pytest.approx(1800)
    assert slope_per_hour(at[:50], rising[:50]) is None
    assert slope_per_hour(at[:0], []) is None
