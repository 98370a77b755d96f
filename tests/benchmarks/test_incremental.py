"""The parts of the incremental benchmark that judge: what changes between frames, and what the times come to."""

from __future__ import annotations

import itertools

import pytest

from arr_coc.qwen.options import IncrementalOptions
from benchmarks import incremental
from benchmarks.incremental import changing_packets, measure_drift, measure_speed
from tests.support.models import tiny_qwen


def test_a_tenth_of_the_tiles_changes_with_every_frame() -> None:
    packets = changing_packets(273, 4)
    for packet, other in itertools.pairwise(packets):
        assert (packet.regions == other.regions).all()
        assert (packet.pixels != other.pixels).any(axis=(1, 2, 3)).sum() == 27


def test_whole_frames_are_spread_over_those_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"incremental": [9.0, 10.0, 30.0], "sparse": [50.0, 41.0, 42.0], "full": [200.0]}
    monkeypatch.setattr(incremental, "_times_ms", lambda *arguments: times)
    result = measure_speed(tiny_qwen(), 3)
    assert result["frame_ms"] == {"incremental": pytest.approx((63 * 10 + 42) / 64), "sparse": 42, "full": 200}
    assert result["times_faster_than_sparse"] == pytest.approx(42 * 64 / 672)
    assert result["met"]
    times["full"] = [120.0]
    assert not measure_speed(tiny_qwen(), 3)["met"]


def test_each_way_is_timed_on_the_same_frames() -> None:
    times = incremental._times_ms(tiny_qwen(), IncrementalOptions(), 3)
    assert [len(times[way]) for way in ("incremental", "sparse", "full")] == [3, 3, 1]
    assert min(itertools.chain(*times.values())) > 0
    assert max(times["incremental"]) < times["full"][0]


def test_without_refresh_less_is_encoded_and_the_error_is_larger() -> None:
    (clip,) = measure_drift(tiny_qwen(), ["scene:moving"], 4)["clips"].values()
    assert clip["frames"] == 4
    drifting, refreshed = clip["policies"]["no refresh"], clip["policies"]["20 % a frame"]
    assert 0 < drifting["encoded_share"] < refreshed["encoded_share"] < 1
    assert 0 < refreshed["error_mean"] < drifting["error_mean"]
    assert drifting["estimated_drift_mean"] is None
    assert refreshed["estimated_drift_mean"] > 0
