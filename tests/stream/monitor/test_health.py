"""A monitor knows a run's state and whether it is well; sources without a pace may take their time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stream.config import AnswerConfig, CaptureConfig, Config
from stream.control import AddWatch, RemoveWatch
from stream.events import ANSWERS_LOST, AnswerDeltaEvent, Notice, Outage, QueryChanged, Restarted, Started, store_lost
from stream.monitor.health import RunMonitor
from tests.support.clock import FakeClock
from tests.support.events import answer, frame, summary
from tests.support.runs import WATCHED_INFO, WatchedRun

NS_PER_S = 1_000_000_000


class FileRun(WatchedRun):
    source_info = replace(WATCHED_INFO, live=False)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NS_PER_S)


def followed(clock: FakeClock, run: WatchedRun | None = None, **capture: object) -> RunMonitor:
    monitor = RunMonitor(Config(source="a.mp4", capture=CaptureConfig.model_validate(capture)), clock)
    monitor.follow(run or WatchedRun())
    return monitor


def test_before_there_is_a_run_it_is_loading(clock: FakeClock) -> None:
    monitor = RunMonitor(Config(source="rtsp://user:secret@camera"), clock)
    clock.advance(100 * NS_PER_S)
    assert monitor.run is None
    assert monitor.status().state == "loading"
    assert "secret" not in str(monitor.status())
    assert monitor.health().healthy
    assert monitor.stats().uptime_s == 100
    assert monitor.stats().latency_ms is None


def test_a_file_that_waits_for_answers_is_not_stalled(clock: FakeClock) -> None:
    monitor = followed(clock, FileRun())
    monitor.add(frame(0, 0.0))
    clock.advance(500 * NS_PER_S)
    assert monitor.health().status == "ok"
    monitor.add(AnswerDeltaEvent(answer=0, text="a "))
    clock.advance(599 * NS_PER_S)
    assert monitor.health().status == "ok"
    clock.advance(2 * NS_PER_S)
    assert monitor.health().status == "stalled"
    assert monitor.stats().jitter is None
    assert monitor.stats().deadline_misses is None


def test_a_file_at_its_own_pace_is(clock: FakeClock) -> None:
    monitor = followed(clock, FileRun(), realtime=True, stall_s=0.1)
    monitor.add(frame(0, 0.0))
    clock.advance(round(1.9 * NS_PER_S))
    assert monitor.health().status == "ok"
    clock.advance(round(0.2 * NS_PER_S))
    assert monitor.health().reason == "no frame for 2.1 s"


def test_the_question_is_that_which_was_taken(clock: FakeClock) -> None:
    monitor = RunMonitor(Config(source="a.mp4"), clock)
    monitor.add(Started(source="a.mp4", model="m", query="What?", backend="cpu"))
    monitor.add(QueryChanged(query="Where?"))
    monitor.add(QueryChanged(query="x" * 9999, error="longer than the context"))
    assert (monitor.status().query, monitor.status().source, monitor.status().model) == ("Where?", "a.mp4", "m")


@pytest.mark.parametrize(
    ("answer", "world"),
    [
        (AnswerConfig(), "drawn scenes"),
        (AnswerConfig(model="Qwen/Qwen3-VL-2B-Instruct"), None),
        (AnswerConfig(model="/on/another/host"), None),
        (AnswerConfig(server="tcp://10.0.0.2:5555"), None),
    ],
)
def test_the_status_names_the_only_world_that_a_model_knows(
    clock: FakeClock, answer: AnswerConfig, world: str | None
) -> None:
    monitor = RunMonitor(Config(source="a.mp4", answer=answer), clock)
    assert monitor.status().known_world is None
    monitor.add(Started(source="a.mp4", model="m", query="What?", backend="cpu"))
    assert monitor.status().known_world == world


def test_a_process_that_was_started_again_is_well_when_its_work_comes(clock: FakeClock) -> None:
    monitor = followed(clock)
    monitor.add(Restarted(process="frames", cause="hung", count=1))
    monitor.add(Restarted(process="answers", cause="killed by SIGKILL", count=1))
    assert monitor.status().state == "restarting"
    assert monitor.status().reason == "frames: hung; answers: killed by SIGKILL"
    monitor.add(frame(0, 0.0))
    assert monitor.status().reason == "answers: killed by SIGKILL"
    monitor.add(answer(0.0, "hello"))
    assert monitor.status().state == "running"


def test_a_model_elsewhere_that_fails_is_not_ready_until_it_answers_again(clock: FakeClock) -> None:
    monitor = followed(clock)
    monitor.add(frame(0, 0.0))
    monitor.add(answer(0.0, "hello"))
    assert monitor.health().ready
    monitor.add(Notice(code=ANSWERS_LOST, message="no answers: bent"))
    health = monitor.health()
    assert (health.status, health.ready, health.reason) == ("ok", False, "no answers: bent")
    monitor.add(answer(1.0, "hello"))
    assert (monitor.health().ready, monitor.health().reason) == (True, None)


def test_an_outage_ends_with_the_next_frame(clock: FakeClock) -> None:
    monitor = followed(clock)
    monitor.add(Outage(frame_index=0, pts_s=0.0, reason="timed out"))
    assert (monitor.status().state, monitor.status().reason) == ("outage", "timed out")
    monitor.add(frame(1, 3.0))
    assert monitor.status().state == "running"
    monitor.add(summary(ended="error", error="it fell"))
    assert (monitor.status().state, monitor.health().reason) == ("ended", "it fell")


def test_the_work_size_is_that_of_the_configuration(clock: FakeClock) -> None:
    status = followed(clock, size="320x240").status()
    assert (status.width_px, status.height_px, status.work_width_px, status.work_height_px) == (64, 48, 320, 240)


def test_the_status_names_the_store_that_runs(clock: FakeClock) -> None:
    monitor = RunMonitor(Config(), clock)
    monitor.add(Started(source="a", model="m", query="?", backend="cuda"))
    assert monitor.status().backend == "cuda"
    monitor.add(store_lost("gone"))
    assert monitor.status().backend == "cpu"


def test_watches_are_changed_only_while_the_run_goes_on() -> None:
    monitor, run = RunMonitor(Config()), WatchedRun()
    change = AddWatch("door", "is it open?")
    assert monitor.send(change) == "the run has not begun; ask again in a moment"
    monitor.follow(run)  # type: ignore[arg-type]
    assert monitor.send(change) is None
    assert run.commands == [change]
    monitor.add(summary())
    assert monitor.send(RemoveWatch("door")) == "the run has ended"
    assert run.commands == [change]
