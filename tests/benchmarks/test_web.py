"""The cost of viewers is separate from that of the run without them."""

from __future__ import annotations

import pytest

from benchmarks.web import costs, targets


def figures(allocated: float, frames_cpu: float, sinks_cpu: float, pictures: float = 0.0) -> dict[str, float]:
    return {
        "allocated_per_s": allocated,
        "frames_cpu_ms_per_s": frames_cpu,
        "sinks_cpu_ms_per_s": sinks_cpu,
        "pictures_per_s": pictures,
    }


def test_a_picture_costs_what_comes_on_top_of_its_frame() -> None:
    one_round = {0: figures(30, 300, 10), 1: figures(15, 240, 20, 15), 4: figures(29.4, 400, 50, 15)}
    cost = costs([one_round])
    assert cost["picture_frames_cpu_ms"] == pytest.approx((240 - 150) / 15)
    assert cost["further_viewer_sinks_cpu_ms"] == pytest.approx((50 - 20) / 2 / 15)
    assert cost["allocation_kept_percent"] == pytest.approx(98)


def test_targets_are_met_on_their_own_side() -> None:
    cost = {"picture_frames_cpu_ms": 6.0, "further_viewer_sinks_cpu_ms": 2.0, "allocation_kept_percent": 96.0}
    result = targets(cost, {"shown_per_s": 19.0, "age_ms": {"p50": 80.0}}, 60_000)
    assert [entry["met"] for entry in result.values()] == [False, True, True, False, True, True]
    assert targets(cost, None, 60_000)["shown per s, in the browser"]["met"] is None
