"""Vitals know a run's state and whether it is well; sources without a pace may take their time."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from stream.clock import FakeClock
from stream.config import CaptureConfig, Config
from stream.events import ANSWERS_LOST, AnswerText, Asked, Notice, Outage, Restarted, Started, store_lost
from stream.monitor.health import Vitals, memory_bytes
from tests.event_maker import answer, frame, summary
from tests.watched_run import INFO, WatchedRun

NS_PER_S = 1_000_000_000


class FileRun(WatchedRun):
    source_info = replace(INFO, live=False)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NS_PER_S)


def test_before_there_is_a_run_it_is_loading(clock: FakeClock) -> None:
    vitals = Vitals(Config(source="rtsp://user:secret@camera"), clock)
    clock.advance(100 * NS_PER_S)
    assert vitals.run is None
    assert vitals.status().state == "loading"
    assert "secret" not in str(vitals.status())
    assert vitals.health().well
    assert vitals.stats().uptime_s == 100
    assert vitals.stats().latency_ms is None


def test_a_file_that_waits_for_answers_is_not_stalled(clock: FakeClock) -> None:
    vitals = Vitals(Config(source="a.mp4"), clock)
    vitals.follow(FileRun())
    vitals.add(frame(0, 0.0))
    clock.advance(500 * NS_PER_S)
    assert vitals.health().status == "ok"
    vitals.add(AnswerText(answer=0, text="a "))
    clock.advance(599 * NS_PER_S)
    assert vitals.health().status == "ok"
    clock.advance(2 * NS_PER_S)
    assert vitals.health().status == "stalled"
    assert vitals.stats().jitter is None
    assert vitals.stats().deadline_misses is None


def test_a_file_at_its_own_pace_is(clock: FakeClock) -> None:
    vitals = Vitals(Config(source="a.mp4", capture=CaptureConfig(realtime=True, stall_s=0.1)), clock)
    vitals.follow(FileRun())
    vitals.add(frame(0, 0.0))
    clock.advance(round(1.9 * NS_PER_S))
    assert vitals.health().status == "ok"
    clock.advance(round(0.2 * NS_PER_S))
    assert vitals.health().reason == "no frame for 2.1 s"


def test_the_question_is_that_which_was_taken(clock: FakeClock) -> None:
    vitals = Vitals(Config(source="a.mp4"), clock)
    vitals.add(Started(source="a.mp4", model="m", query="What?", backend="cpu"))
    vitals.add(Asked(query="Where?"))
    vitals.add(Asked(query="x" * 9999, error="longer than the context"))
    assert (vitals.status().query, vitals.status().source, vitals.status().model) == ("Where?", "a.mp4", "m")


def test_a_process_that_was_started_again_is_well_when_its_work_comes(clock: FakeClock) -> None:
    vitals = Vitals(Config(source="a.mp4"), clock)
    vitals.follow(WatchedRun())
    vitals.add(Restarted(process="frames", cause="hung", count=1))
    vitals.add(Restarted(process="answers", cause="killed by SIGKILL", count=1))
    assert vitals.status().state == "restarting"
    assert vitals.status().reason == "frames: hung; answers: killed by SIGKILL"
    vitals.add(frame(0, 0.0))
    assert vitals.status().reason == "answers: killed by SIGKILL"
    vitals.add(answer(0.0, "hello"))
    assert vitals.status().state == "running"
    assert vitals.stats().restarts == {"frames": 1, "answers": 1}


def test_a_model_elsewhere_that_fails_is_not_ready_until_it_answers_again(clock: FakeClock) -> None:
    vitals = Vitals(Config(source="a.mp4"), clock)
    vitals.follow(WatchedRun())
    vitals.add(frame(0, 0.0))
    vitals.add(answer(0.0, "hello"))
    assert vitals.health().ready
    vitals.add(Notice(code=ANSWERS_LOST, message="no answers: bent"))
    health = vitals.health()
    assert (health.status, health.ready, health.reason) == ("ok", False, "no answers: bent")
    vitals.add(answer(1.0, "hello"))
    assert (vitals.health().ready, vitals.health().reason) == (True, None)


def test_an_outage_ends_with_the_next_frame(clock: FakeClock) -> None:
    vitals = Vitals(Config(source="a.mp4"), clock)
    vitals.follow(WatchedRun())
    vitals.add(Outage(frame_index=0, pts_s=0.0, reason="timed out"))
    assert (vitals.status().state, vitals.status().reason) == ("outage", "timed out")
    vitals.add(frame(1, 3.0))
    assert vitals.status().state == "running"
    vitals.add(summary(ended="error", error="it fell"))
    assert (vitals.status().state, vitals.health().reason) == ("ended", "it fell")


def test_the_work_size_is_that_of_the_configuration(clock: FakeClock) -> None:
    vitals = Vitals(Config(source="a.mp4", capture=CaptureConfig(size="320x240")), clock)
    vitals.follow(WatchedRun())
    status = vitals.status()
    assert (status.width_px, status.height_px, status.work_width_px, status.work_height_px) == (64, 48, 320, 240)


def test_memory_of_processes_that_are_gone_is_left_out() -> None:
    assert list(memory_bytes({"frames": os.getpid(), "answers": 2**22 + 1})) == ["frames"]


def test_the_status_names_the_store_that_runs(clock: FakeClock) -> None:
    vitals = Vitals(Config(), clock)
    vitals.add(Started(source="a", model="m", query="?", backend="cuda"))
    assert vitals.status().backend == "cuda"
    vitals.add(store_lost("gone"))
    assert vitals.status().backend == "cpu"
