"""The statistics of a run: the definitions of stream.monitor.metrics over the last seconds, and its summary."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest
from msgspec.structs import replace

from stream.events import (
    Cut,
    Event,
    FrameReady,
    MemorySummary,
    Notice,
    Outage,
    PictureChanged,
    Restarted,
    Skipped,
    Summary,
)
from stream.monitor.metrics import interarrival_ms, interval_std_ms
from stream.monitor.schema import RecentJitter
from stream.monitor.statistics import RunStatistics, StatisticsSnapshot
from tests.support.clock import FakeClock
from tests.support.events import answer, frame, look, match

MS = 1_000_000
S = 1000 * MS
PERIOD = 40 * MS
FPS = 25.0


class Measured:
    """The statistics of a run by a clock that the test sets."""

    def __init__(self, fps: float | None = None) -> None:
        self._clock = FakeClock()
        self._statistics = RunStatistics(self._clock, fps)

    def add(self, event: Event, now_ns: int = 0) -> None:
        self._clock.advance(now_ns - self._clock.now_ns())
        self._statistics.add(event)

    def at(self, now_ns: int, *dropped_and_memory: dict[str, int]) -> StatisticsSnapshot:
        self._clock.advance(now_ns - self._clock.now_ns())
        return self._statistics.snapshot(*dropped_and_memory)

    def summary(self, now_ns: int = 0, dropped: Mapping[str, int] = MappingProxyType({})) -> Summary:
        self._clock.advance(now_ns - self._clock.now_ns())
        return self._statistics.summary("finished", None, dropped, "cpu")


def play(figures: Measured, count: int, latency_ms: float = 5, first: int = 0) -> int:
    """Frames at 25 a second, the first at 0 s; returns the time at which the last one is ready."""
    for index in range(first, first + count):
        ready_ns = index * PERIOD + round(latency_ms * MS)
        figures.add(frame(index, index / 25, capture_ns=index * PERIOD, ready_ns=ready_ns), ready_ns)
    return (first + count - 1) * PERIOD + round(latency_ms * MS)


def test_before_the_first_frame_few_figures_are_known() -> None:
    figures = Measured().at(2 * S)
    assert (figures.uptime_s, figures.frames, figures.fps, figures.answers) == (2, 0, 0, 0)
    unknown = (figures.media_s, figures.fps_run, figures.latency_ms, figures.jitter, figures.dirty_share)
    assert set(unknown) == {None}


def test_an_even_stream_has_its_rate_and_no_jitter() -> None:
    live = Measured(FPS)
    figures = live.at(play(live, 100))
    assert figures.fps == pytest.approx(25)
    assert figures.fps_run == pytest.approx(25)
    assert figures.latency_ms is not None
    assert (figures.latency_ms.p50, figures.latency_ms.max) == (5, 5)
    assert figures.jitter == RecentJitter(interarrival_ms=0, interval_std_ms=0, deadline_misses_percent=0)
    assert (figures.tokens, figures.tiles, figures.dirty_share) == (64, 240, 0.5)
    assert figures.media_s == pytest.approx(99 / 25)


def test_the_rate_falls_if_frames_stop_coming() -> None:
    live = Measured(FPS)
    last_ns = play(live, 100)
    assert live.at(last_ns + S).fps == pytest.approx(12.5, abs=0.5)
    assert live.at(last_ns + 3 * S).fps == 0
    assert live.at(last_ns + 20 * S).latency_ms is None


def test_only_the_last_ten_seconds_count_for_latency_but_misses_count_for_the_run() -> None:
    live = Measured(FPS)
    play(live, 10, latency_ms=90)
    last_ns = play(live, 300, first=10)
    figures = live.at(last_ns)
    assert figures.latency_ms is not None
    assert figures.latency_ms.max == 5
    assert figures.jitter is not None
    assert (figures.deadline_misses, figures.jitter.deadline_misses_percent) == (10, 0)


def test_jitter_is_what_the_metrics_say() -> None:
    live, rng = Measured(FPS), np.random.default_rng(7)
    pts_ns = np.arange(100) * PERIOD
    ready_ns = pts_ns + rng.integers(1 * MS, 60 * MS, 100)
    for index in range(100):
        live.add(frame(index, pts_ns[index] / S, capture_ns=int(pts_ns[index]), ready_ns=int(ready_ns[index])), 0)
    figures = live.at(int(ready_ns[-1]))
    assert figures.jitter is not None
    assert figures.jitter.interarrival_ms == pytest.approx(interarrival_ms(ready_ns, pts_ns))
    assert figures.jitter.interval_std_ms == pytest.approx(interval_std_ms(ready_ns, pts_ns))
    assert figures.jitter.deadline_misses_percent == pytest.approx(100 * np.mean(ready_ns - pts_ns > PERIOD))
    assert figures.deadline_misses == np.sum(ready_ns - pts_ns > PERIOD)


def test_without_a_declared_rate_the_usual_gap_is_the_period() -> None:
    live = Measured()
    last_ns = play(live, 10, latency_ms=90)
    jitter = live.at(last_ns).jitter
    assert jitter is not None
    assert jitter.deadline_misses_percent == 100
    play(live, 1, latency_ms=90, first=10)
    assert live.at(last_ns).deadline_misses == 1


def test_frames_without_a_rate_are_never_late() -> None:
    live = Measured()
    for index in range(5):
        live.add(frame(index, 0.0, capture_ns=0, ready_ns=index * PERIOD), 0)
    assert live.at(S).jitter is None


def test_answers_cuts_restarts_drops_and_memory_are_reported() -> None:
    live = Measured(FPS)
    for event in (
        answer(1.0, "a"),
        Cut(frame_index=1, pts_s=1.0, score=1.0),
        Restarted(process="answers", cause="killed", count=1),
        answer(2.0, "b", timing=None),
    ):
        live.add(event, 0)
    figures = live.at(S, {"capture.replaced": 3, "answer.busy": 0}, {"frames": 7})
    assert (figures.answers, figures.cuts, figures.restarts, figures.ttft_ms) == (2, 1, {"answers": 1}, None)
    assert figures.dropped == {"capture.replaced": 3}
    assert figures.memory_bytes == {"frames": 7}
    live.add(answer(3.0, "c"), 0)
    assert (live.at(S).ttft_ms, live.at(S).total_ms) == (40, pytest.approx(60.1, abs=0.1))


def lost(reason: str, lasted_s: float | None = None) -> Outage:
    return Outage(frame_index=1, pts_s=1.0, reason=reason, lasted_s=lasted_s)


def test_an_outage_is_timed_while_it_lasts_and_is_no_jitter() -> None:
    live = Measured(FPS)
    last_ns = play(live, 100)
    live.add(lost("refused"), last_ns)
    live.add(lost("timed out"), last_ns + 2 * S)
    outage = live.at(last_ns + 3 * S).outage
    assert outage is not None
    assert (outage.reason, outage.lasted_s, live.at(last_ns).outages) == ("timed out", 3, 1)
    live.add(lost("timed out", 4.0), last_ns + 4 * S)
    for index in range(100, 150):
        ready_ns = index * PERIOD + 4 * S
        live.add(frame(index, index / 25, capture_ns=ready_ns - MS, ready_ns=ready_ns), ready_ns)
    figures: StatisticsSnapshot = live.at(ready_ns)
    assert (figures.outage, figures.outages, figures.outages_s) == (None, 1, 4)
    assert figures.jitter is not None
    assert figures.jitter.interval_std_ms == 0


def test_the_newest_frames_are_kept_however_fast_they_come() -> None:
    live = Measured(FPS)
    for index in range(10_000):
        live.add(frame(index, index / 1e4, capture_ns=0, ready_ns=index * 100_000))
    figures = live.at(S)
    assert figures.frames == 10_000
    assert figures.latency_ms is not None
    assert figures.latency_ms.p50 == pytest.approx((9_999 - 4_095 / 2) / 10), "of the newest 4096"


def counted_frame(index: int, ready_ns: int) -> FrameReady:
    motion = {"motion_px": 4.0 * index, "moving_share": index / 4}
    return frame(
        index, 1 + index / 10, ready_ns=ready_ns, dirty_share=index / 10, tokens=100 + index, tiles=200, **motion
    )


def test_every_kind_is_counted_in_the_summary() -> None:
    run = Measured()
    for index in range(3):
        run.add(counted_frame(index, 20 * S + index * S // 2))
    for event in (
        answer(0.0, ""),
        Cut(frame_index=1, pts_s=0.1, score=0.5),
        Skipped(frame_index=1, pts_s=0.1, what="packets 3-6", reason="bad", count=4),
        PictureChanged(frame_index=1, pts_s=0.1, reason="resolution", width_px=64, height_px=32),
        Notice(code="loading", message="loading"),
    ):
        run.add(event)
    summary = run.summary(15 * S, {"capture.replaced": 2, "texture.replaced": 0})
    counts = (summary.frames, summary.answers, summary.cuts, summary.skipped, summary.discontinuities)
    assert (counts, summary.dropped) == ((3, 1, 1, 4, 1), {"capture.replaced": 2})
    assert (summary.mean_tokens, summary.mean_tiles, summary.mean_dirty_share) == (101, 200, pytest.approx(0.1))
    assert (summary.mean_motion_px, summary.mean_moving_share) == (4, 0.25)
    assert summary.duration_s == pytest.approx(0.2)
    assert summary.timing == {"wall_s": 15.0, "fps": 2.0}
    assert summary.work_ratio is None, "the model does not report it"


def test_the_summary_has_the_saving_by_choosing_tokens() -> None:
    run = Measured()
    for flops in (10, 30):
        run.add(replace(answer(0.0, ""), flops=flops, full_flops=50))
    assert run.summary().work_ratio == 2.5


def test_a_run_without_frames_has_a_summary_too() -> None:
    summary = RunStatistics(FakeClock()).summary("error", "the capture stage died: …", {}, "gl")
    assert (summary.frames, summary.duration_s, summary.mean_tokens) == (0, 0.0, 0.0)
    assert summary.timing == {"wall_s": 0.0, "fps": 0.0}
    assert (summary.ended, summary.error, summary.backend) == ("error", "the capture stage died: …", "gl")


def test_a_watch_has_found_something_if_there_was_a_match() -> None:
    run = Measured()
    results = [run.summary().found]
    for event in (look(0.0, holds=None), look(0.0), match(0.0), look(0.0, holds="no")):
        run.add(event)
        results.append(run.summary().found)
    assert results == [None, False, False, True, True]


def test_groups_and_their_tokens_are_counted() -> None:
    figures = Measured()
    assert (figures.at(0).memory, figures.summary().memory) == (None, None)
    for group, reason, tokens_used, appended_tokens, superseded_tokens in (
        *((1, "first", 60, 60, 0), (1, "", 70, 10, 20), (1, "", 70, 0, 25)),
        *((2, "epoch", 60, 60, 0), (4, "", 80, 20, 3), (5, "epoch", 60, 60, 0)),
    ):
        event = replace(answer(0.0, "t"), group=group, began=reason, tokens_used=tokens_used)
        figures.add(replace(event, appended_tokens=appended_tokens, superseded_tokens=superseded_tokens))
    memory = figures.summary().memory
    assert memory == MemorySummary(
        # Group 4 began with a check of a standing query, and the one before it had no answer at all.
        groups={"first": 1, "epoch": 2, "check": 1},
        appended_tokens=210,
        kept_tokens=190,
        superseded_tokens=28,
    )
    assert figures.at(0).memory == memory
