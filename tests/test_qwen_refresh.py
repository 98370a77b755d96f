"""When unchanged regions are encoded again, and which."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arr_coc.errors import OptionError
from arr_coc.qwen.options import IncrementalOptions
from arr_coc.qwen.refresh import all_due, most_unsettled, unrest

NOTHING = np.zeros(8, bool)


def test_all_are_due_every_so_many_frames() -> None:
    options = IncrementalOptions(every_frames=3, drift_limit=None)
    assert [all_due(options, NOTHING, frames, None) for frames in (1, 2, 3)] == [False, False, True]
    assert not all_due(IncrementalOptions(every_frames=None), NOTHING, 10_000, None)


def test_all_are_due_where_the_sample_was_too_far_off() -> None:
    options = IncrementalOptions(drift_limit=0.2)
    assert [all_due(options, NOTHING, 1, drift) for drift in (None, 0.2, 0.21)] == [False, False, True]
    assert not all_due(IncrementalOptions(drift_limit=None), NOTHING, 1, 9.0)


def test_all_are_due_where_most_are_stale() -> None:
    options = IncrementalOptions(drift_limit=None)
    assert not all_due(options, np.arange(8) < 6, 1, None)
    assert all_due(options, np.arange(8) < 7, 1, None)


def test_unrest_falls_with_the_distance_between_centres() -> None:
    regions = np.array([[0, 0, 0], [0, 0, 1], [0, 3, 0], [1, 0, 1]], np.int32)
    felt = unrest(regions, np.array([[0, 0, 0], [0, 0, 2]], np.int32))
    near = 1 / (1 + 0.5**2 + 0.5**2)
    assert felt.tolist() == pytest.approx([1 + 1 / 5, 1 / 2 + 1 / 2, 1 / 10 + 1 / 14, near + 1 / (1 + 2.5**2 + 0.5**2)])
    assert unrest(regions, regions[:0]).tolist() == [0] * 4


def chosen(unsettled: list[float], encoded: list[int], stale: list[bool], share: float) -> list[int]:
    flags = most_unsettled(np.array(unsettled), np.array(encoded), np.array(stale), share)
    return np.flatnonzero(flags).tolist()


def test_the_most_unsettled_come_first_then_those_encoded_longest_ago() -> None:
    still = [False] * 5
    assert chosen([0.1, 3, 0.2, 2, 0], [0] * 5, still, 0.4) == [1, 3]
    assert chosen([0, 0, 0, 0, 0], [4, 2, 3, 1, 5], still, 0.4) == [1, 3]
    assert chosen([0, 0, 0, 0, 0], [1] * 5, still, 0.4) == [0, 1]


def test_stale_regions_are_not_counted_as_refreshed() -> None:
    stale = [True, True, False, True, False]
    assert chosen([9, 9, 0, 9, 1], [0] * 5, stale, 0.2) == [4]
    assert chosen([9, 9, 0, 9, 1], [0] * 5, stale, 1.0) == [2, 4]
    assert chosen([9, 9, 0, 9, 1], [0] * 5, stale, 0.0) == []


def test_every_region_has_its_turn_while_nothing_happens() -> None:
    encoded = np.zeros(10, np.int64)
    for frame in range(1, 6):
        encoded[most_unsettled(np.zeros(10), encoded, np.zeros(10, bool), 0.2)] = frame
    assert sorted(encoded) == sorted([1, 2, 3, 4, 5] * 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_frames": 0}, "every_frames must be at least 1, or none, got 0"),
        ({"share": 1.5}, r"share must be in \[0, 1\], got 1.5"),
        ({"share": float("nan")}, "share must be in"),
        ({"drift_limit": 0.0}, "drift_limit must be above 0, or none, got 0.0"),
        ({"memory_mb": -1.0}, "memory_mb must be 0 or more, got -1.0"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        IncrementalOptions(**options)
