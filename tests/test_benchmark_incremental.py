"""The parts of the incremental benchmark that judge: what changes between frames, and how blocks are extrapolated."""

from __future__ import annotations

import itertools

import pytest
import torch
from tiny_qwen import tiny_qwen

from benchmarks import incremental
from benchmarks.incremental import changing_packets, measure_drift, measure_speed


def test_a_tenth_of_the_tiles_changes_with_every_frame() -> None:
    packets = changing_packets(273, 4)
    for one, other in itertools.pairwise(packets):
        assert (one.regions == other.regions).all()
        assert (one.pixels != other.pixels).any(axis=(1, 2, 3)).sum() == 27


def test_blocks_that_were_not_measured_cost_what_those_between_the_depths_do(monkeypatch: pytest.MonkeyPatch) -> None:
    shallow, deep = incremental.SHALLOW
    costs = {
        shallow: {"incremental": 10.0, "sparse": 50.0, "full": 250.0},
        deep: {"incremental": 14.0, "sparse": 70.0, "full": 350.0},
    }
    monkeypatch.setattr(incremental, "model_2b", lambda depth, device, dtype: depth)
    monkeypatch.setattr(incremental, "_at_depth", lambda depth, repeats: costs[depth])
    told = measure_speed("cpu", torch.float32, 1)
    assert told["frame_ms"]["sparse"] == 50 + 10 * (24 - shallow)
    assert told["frame_ms"]["full"] == 250 + 50 * (24 - shallow)
    plain = 10 + 2 * (24 - shallow)
    assert told["frame_ms"]["incremental"] == pytest.approx((63 * plain + told["frame_ms"]["sparse"]) / 64)
    assert told["extrapolated"]
    assert told["met"] == (told["times_faster_than_full"] >= 12)


def test_without_refresh_less_is_encoded_and_the_error_is_larger() -> None:
    (clip,) = measure_drift(tiny_qwen(), ["scene:moving"], 4)["clips"].values()
    assert clip["frames"] == 4
    alone, refreshed = clip["policies"]["no refresh"], clip["policies"]["20 % a frame"]
    assert 0 < alone["encoded_share"] < refreshed["encoded_share"] < 1
    assert 0 < refreshed["error_mean"] < alone["error_mean"]
    assert alone["estimated_drift_mean"] is None
    assert refreshed["estimated_drift_mean"] > 0
