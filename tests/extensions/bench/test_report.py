"""The benchmark's report of one run: its measured values, the parts left out, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Container

import pytest
from msgspec import structs

from stream.config import Config
from stream.events import AnswerUnchanged, Cut, Event, Outage, Restarted
from stream.extensions.bench.report import FRAME, Report, RunRecord, config_json, report
from stream.monitor.machine import machine
from stream.monitor.statistics import MemorySample, RunStatistics
from tests.support.clock import FakeClock
from tests.support.events import answer, frame, summary


def recorded(
    frames: int,
    gap_ms: int = 40,
    *,
    scheduled: bool = False,
    late_ms: float = 5,
    ended: str = "finished",
    gaps: Container[int] = (),
) -> RunRecord:
    """Frames every `gap_ms` but those `gaps`, ready `late_ms` after capture; for every tenth an answer, new or not."""
    record = RunRecord(scheduled=scheduled, statistics=RunStatistics(FakeClock()))
    for index in (index for index in range(frames) if index not in gaps):
        ready_ns = round((index * gap_ms + late_ms) * 1e6)
        take(record, frame(index, index * gap_ms / 1000, ready_ns=ready_ns))
        if index % 10 == 0:
            new = answer(index * gap_ms / 1000, "x", frame_index=index)
            take(record, AnswerUnchanged(**structs.asdict(new), since_s=0.0) if index % 20 else new)
    record.write(summary(dropped={"answer.busy": 2}, ended=ended))
    record.close()
    return record


def take(record: RunRecord, event: Event) -> None:
    """As a run gives its events."""
    record.statistics.add(event)
    record.write(event)


def figure(result: Report, name: str) -> float | None:
    return next(metric.value for metric in result.figures if metric.name == name)


def p50(result: Report, name: str) -> float:
    values = next(latency.values for latency in result.latencies if latency.name == name)
    assert values is not None
    return values.p50


def test_the_first_and_last_second_are_left_out() -> None:
    result = report(recorded(101))
    assert (result.frames, result.measured_frames, result.left_out_s) == (101, 51, (1.0, 1.0))
    assert figure(result, "fps") == pytest.approx(25)
    assert figure(result, "answers") == pytest.approx(5 / 2)


def test_a_longer_warm_up_is_left_out_at_the_start() -> None:
    result = report(recorded(126), warmup_s=3)
    assert (result.measured_frames, result.left_out_s) == (26, (3, 1.0))


def test_a_short_run_is_measured_whole_and_reports_it() -> None:
    result = report(recorded(50))
    assert (result.measured_frames, result.left_out_s) == (50, (0.0, 0.0))


def test_latencies_are_named_and_jitter_needs_a_schedule() -> None:
    free, paced = report(recorded(101)), report(recorded(101, scheduled=True))
    assert p50(free, "frame") == pytest.approx(5)
    assert figure(free, "interarrival") is None
    assert figure(free, "source interval_std") is None
    assert figure(paced, "interarrival") == pytest.approx(0, abs=1e-3)
    assert figure(paced, "source interval_std") == pytest.approx(0, abs=1e-3)
    assert figure(paced, "deadline misses") == 0


def test_a_stage_s_times_and_its_waits_add_up_to_the_latency() -> None:
    result = report(recorded(101))
    assert p50(result, "texture") + p50(result, "allocate") + p50(result, "waits") == pytest.approx(5)
    parts = sum(p50(result, name) for name in ("frame", "encode", "prefill", "decode", "answer waits"))
    assert parts == pytest.approx(p50(result, "answer, last token"))


def test_an_empty_run_has_no_figures_and_no_errors() -> None:
    result = report(RunRecord(scheduled=True))
    assert all(metric.values is None and metric.mean is None for metric in result.latencies)
    assert all(metric.value is None for metric in result.figures)


def test_the_timeline_knows_answers_cuts_and_gaps() -> None:
    record = recorded(10, gaps=range(4, 7))
    record.write(Cut(frame_index=8, pts_s=0.32, score=1.0))
    record.write(Cut(frame_index=5, pts_s=0.2, score=1.0))
    timeline = report(record).timeline
    assert timeline.gaps_s == ((pytest.approx(0.28), 3),)
    assert timeline.cuts_s == (pytest.approx(0.32),)
    assert timeline.answers_s == (pytest.approx((-0.005, 0.035, 0.055123456789)),)


def test_faults_are_counted() -> None:
    record = recorded(3)
    for lasted_s in (None, 2.0):
        take(record, Outage(frame_index=1, pts_s=0.0, reason="gone", lasted_s=lasted_s))
    take(record, Restarted(process="answers", cause="killed", count=1))
    assert report(record).counts == {
        "answers": 1,
        "unchanged": 0,
        "glances": 0,
        "cuts": 0,
        "skipped": 0,
        "outages": 1,
        "restarts": 1,
    }


def test_memory_is_the_largest_sum_and_has_a_slope_after_a_minute() -> None:
    record = recorded(101)
    for second in range(0, 121, 10):
        rss_bytes = {"frames": 300_000_000 + second * 100_000, "answers": 500_000_000}
        record.memory.append(MemorySample(5_000_000 + second * 1_000_000_000, rss_bytes))
    result = report(record)
    assert figure(result, "memory") == pytest.approx(812)
    assert figure(result, "memory slope") == pytest.approx(0.1 * 3600)
    assert result.memory_mb == {"frames": 312.0, "answers": 500.0}
    del record.memory[6:]
    assert figure(report(record), "memory slope") is None


def test_json_holds_values_and_definitions() -> None:
    reported = json.loads(json.dumps(report(recorded(101, scheduled=True)).as_json()))
    assert reported["latency_ms"]["frame"]["p99"] == pytest.approx(5)
    assert all(entry["definition"] for entry in (*reported["figures"].values(), *reported["latency_ms"].values()))
    assert reported["dropped"] == {"answer.busy": 2}


def test_the_configuration_is_reported_without_secrets() -> None:
    reported = config_json(Config(source="rtsp://me:hush@camera/1"))
    assert (reported["source"], reported["allocate"]["budget"]) == ("rtsp://***@camera/1", "auto")


def test_every_number_of_a_frame_is_kept_in_little_memory() -> None:
    record, event = RunRecord(), frame(10_000, 333.3, ready_ns=10**12, tokens=7, slot=3)
    record.write(event)
    record.write(frame(10_001, 333.4))
    assert record.frames[0].tolist() == tuple(getattr(event, name) for name in FRAME.names or ())
    assert record.frames.nbytes == 2 * 88


def test_the_machine_is_reported_even_if_a_package_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.monitor.machine.PACKAGES", ("torch", "no-such-package"))
    reported = machine()
    assert {"cpu", "cores", "load_1min", "system", "python", "torch"} <= set(reported)
    assert reported["no-such-package"] is None
