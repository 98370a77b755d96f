"""The parts of the benchmarks that judge: what is compared with what, and what counts as reached."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from benchmarks.hops import compare_hops, hops_us, slow_consumer
from benchmarks.live import measure_memory, measure_release, targets, worst_frames
from benchmarks.support.hop_channels import END, OwnThreads, number_of, stamp_number
from benchmarks.transport import median_of
from stream.answer.model import AnswerModel
from stream.extensions.bench.report import RunRecord, report
from stream.monitor.statistics import MemorySample
from tests.extensions.bench.test_report import recorded
from tests.soak.hostile_client import SteadyAnswerModel
from tests.support.events import frame

PICTURES = [np.full((1080, 1920, 3), level, np.uint8) for level in (60, 200)]


@pytest.mark.parametrize("number", [0, 1, 299, END])
def test_a_number_shown_in_a_picture_survives_compression(number: int) -> None:
    image = stamp_number(number, PICTURES[0])
    assert number_of(image) == number
    assert number_of(np.clip(image.astype(int) + 90, 0, 220).astype(np.uint8)) == number
    assert (PICTURES[0] == 60).all()


def test_hops_of_the_first_tenth_are_not_counted() -> None:
    hops = hops_us(OwnThreads(), PICTURES, 10, processes=False)
    assert 1 <= len(hops) <= 9  # on a busy machine a newer frame replaces one that waits
    assert all(hop > 0 for hop in hops)


def test_of_several_rounds_the_median_counts() -> None:
    rounds = [{"hop": {"p50": p50, "p99": 10 * p50}, "late_sleep": {"p50": 1.0}} for p50 in (9.0, 1.0, 3.0)]
    assert median_of(rounds) == {
        "hop": {"p50": 3.0, "p99": 30.0},
        "late_sleep": {"p50": 1.0},
        "p99_of_rounds": [90.0, 10.0, 30.0],
    }


def test_a_slow_consumer_here_gets_new_frames() -> None:
    result = slow_consumer(OwnThreads(), PICTURES, 2.0, processes=False)
    arrivals = result["received"] + result["still_waiting_at_the_end"]
    assert 0 < arrivals <= result["given_to_the_sender"]
    assert result["replaced_by_the_sender"] <= result["given_to_the_sender"] - arrivals
    assert json.loads(json.dumps(result)) == result


def test_hops_are_compared_with_the_quickest_peer_of_each_boundary() -> None:
    def hop(way: str, between: str, p50: float) -> dict[str, Any]:
        return {"way": way, "between": between, "carries": "x", "hop_us": {"p50": p50, "p95": 2 * p50}}

    hops = [hop("this project, a", "threads", 100), hop("this project, b", "processes", 500)]
    peers = [hop("slow", "threads", 900), hop("quick", "threads", 700), hop("slow", "processes", 1000)]
    result = compare_hops([*hops, *peers])
    between_threads = result["than the quickest peer between threads"]
    assert between_threads["peer"] == "quick"
    assert between_threads["times_shorter"]["this project, a"] == {"p50": 7, "p95": 7}
    between_processes = result["than the quickest peer between processes"]["times_shorter"]
    assert between_processes["this project, b"] == {"p50": 2, "p95": 2}


LATE = {"ready_ns": 4_300_000_000, "texture_ms": 99.0}


def live_record(rise_mb: float) -> RunRecord:
    record = recorded(5000, scheduled=True)
    for second in range(200):
        memory = {"frames": 400_000_000 + round(second / 200 * rise_mb * 1e6), "answers": 600_000_000}
        record.memory.append(MemorySample(second * 1_000_000_000 + 6_000_000, memory))
    return record


def test_memory_that_rises_is_not_flat() -> None:
    flat, rising = live_record(0), live_record(50)
    assert targets(report(flat), measure_memory(flat))["memory, rise over the run, %"]["met"]
    result = measure_memory(rising)
    assert result["rise_over_the_run_percent"] == pytest.approx(5, rel=0.05)
    assert result["slope_mb_per_hour_of"]["answers"] == pytest.approx(0, abs=1e-3)
    assert not targets(report(rising), result)["memory, rise over the run, %"]["met"]


def test_late_frames_miss_the_target_and_are_reported_one_by_one() -> None:
    record = RunRecord(scheduled=True, memory=live_record(0).memory)
    for index in range(5000):
        record.write(frame(index, index / 25, **(LATE if index == 100 else {})))
    result = targets(report(record), measure_memory(record))
    assert not result["interval_std, ms"]["met"]
    assert result["frame latency p99, ms"]["met"]
    worst = worst_frames(record)
    assert len(worst) == 10
    assert max(worst, key=lambda entry: entry["frame_ms"])["at_s"] == 4.0


def test_a_short_run_says_nothing_about_memory() -> None:
    record = recorded(50, scheduled=True)
    record.memory.append(MemorySample(1_000_000_000, {"frames": 400_000_000}))
    assert targets(report(record), measure_memory(record))["memory, rise over the run, %"]["met"] is None


def test_the_release_of_a_paced_scene_is_measured_alone() -> None:
    result = measure_release("paced-720p60", 12)
    assert 0 < result["frames"] <= 12  # frames are dropped if the machine is busy
    assert result["late_ms"]["max"] >= result["late_ms"]["p50"] >= 0


def test_the_steady_model_of_a_benchmark_is_one_to_the_answer_server() -> None:
    public = {name for name in vars(AnswerModel) if not name.startswith("_")}
    missing_names = {name for name in (*public, *AnswerModel.__annotations__) if not hasattr(SteadyAnswerModel, name)}
    assert missing_names == {"check_schema", "glance"}, "it cannot glance, and says so; its clients have no schemas"
    assert not SteadyAnswerModel.can_glance
