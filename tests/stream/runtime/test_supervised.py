"""Runs whose processes are killed, stopped and broken: what goes on, what is reported, and that no process is left."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from arr_coc.errors import BackendMissing, ModelNotFound
from arr_coc.texture.store.native import kernel_in_use
from arr_coc.types import NS_PER_S
from stream.clock import MonotonicClock
from stream.config import (
    AllocateConfig,
    AnswerConfig,
    CaptureConfig,
    Config,
    PipelineConfig,
    TextureConfig,
    WatchConfig,
)
from stream.control import Ask, RunControl
from stream.errors import OpeningCancelled, SourceNotFound, StageDied, TransportError
from stream.events import (
    Answer,
    Event,
    FrameReady,
    Match,
    Notice,
    QueryChanged,
    Restarted,
    Started,
    VerdictChanged,
    YesNoResult,
)
from stream.runtime.child import start_fork_server
from stream.runtime.frame_process import FrameProcess, run_in_child
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.run import Run
from stream.runtime.worker_messages import WorkerFailed, pack_report
from tests.support.children import own_children
from tests.support.network import until
from tests.support.runs import ENDLESS, RunRecorder, config, open_supervised, watch
from tests.support.stores import require

HEARTBEAT_S = 3.0
"""Far longer than a busy machine delays a thread, so that only a stopped process is silent for this long."""


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Every run, however it ends, gives back its children and its files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    assert own_children() == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_outlives_both_of_its_processes() -> None:
    run = open_supervised()
    pids: list[dict[str, int]] = []
    killed_ns: dict[str, int] = {}

    def on_event(recorder: RunRecorder, event: Event) -> None:
        if recorder.once("ask", len(recorder.of(Answer)) >= 2):
            run.send(Ask("and now?"))
        if recorder.once("frames", bool(recorder.of(QueryChanged)) and recorder.events[-1].__class__ is FrameReady):
            pids.append(run.processes())
            killed_ns["frames"] = recorder.signal("frames")
        if recorder.once("answers", bool(recorder.of(Restarted)) and isinstance(event, Answer)):
            pids.append(run.processes())
            killed_ns["answers"] = recorder.signal("answers")
        if (
            len(recorder.of(Restarted)) == 2
            and isinstance(event, Answer)
            and recorder.once("end", is_newer(recorder, event))
        ):
            pids.append(run.processes())
            run.end()

    def is_newer(recorder: RunRecorder, answer: Answer) -> bool:
        """Whether it is about a frame that was captured after the answer process was killed."""
        frame = next(f for f in recorder.of(FrameReady) if f.frame_index == answer.frame_index)
        return frame.capture_ns > killed_ns["answers"]

    recorder = watch(run, on_event)
    assert recorder.restarts() == [
        ("frames", "its process was killed by SIGKILL", 1),
        ("answers", "its process was killed by SIGKILL", 1),
    ]
    assert recorder.frames_rise()
    first, last = (list(map(type, recorder.events)).index(Restarted), len(recorder.events))
    assert any(isinstance(event, FrameReady) for event in recorder.events[first:last])
    before, between, after = pids
    assert before["frames"] != between["frames"] == after["frames"]
    assert before["answers"] == between["answers"] != after["answers"], "the model was loaded once more"
    answers = recorder.of(Answer)
    assert [a.answer for a in answers] == sorted({a.answer for a in answers})
    asked_at = recorder.events.index(recorder.of(QueryChanged)[0])
    assert {a.query for a in answers if recorder.events.index(a) > asked_at} == {"and now?"}
    assert [type(event) for event in recorder.events[:2]] == [Started, Notice]
    assert recorder.summary.ended == "interrupted"
    assert recorder.summary.frames == len(recorder.of(FrameReady))


class LateClock(MonotonicClock):
    """A clock that can be put forward."""

    ahead_s = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.ahead_s * NS_PER_S


def test_a_file_that_would_be_over_by_now_is_not_begun_again() -> None:
    clock = LateClock()
    run = run_in_child(config(), clock, model_loader="tests.support.answer_models:FakeAnswerModel")

    def on_event(recorder: RunRecorder, event: Event) -> None:
        if recorder.once("kill", isinstance(event, FrameReady)):
            recorder.signal("frames")
            clock.ahead_s = 7200

    recorder = watch(run, on_event)
    assert recorder.summary.ended == "finished"


def test_a_source_that_cannot_be_opened_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    missing = Config(source=str(tmp_path / "missing.mp4"), capture=CaptureConfig(realtime=True))
    with pytest.raises(SourceNotFound, match=r"missing.mp4 does not exist; check the name"):
        open_supervised(settings=missing)


def test_a_run_that_is_ended_before_its_source_is_open_waits_no_longer(tmp_path: Path) -> None:
    control = RunControl()
    control.cancel()
    waiting = Config(source=f"zmq+ipc://{tmp_path}/absent", capture=CaptureConfig(open_timeout_s=86_400))
    with pytest.raises(OpeningCancelled, match="ended before its source was open"):
        run_in_child(waiting, control=control)


@pytest.mark.slow
def test_a_fork_server_of_the_caller_outlives_a_run() -> None:
    forks = start_fork_server()
    if forks is None:
        pytest.skip("processes are not forked here")
    with forks:
        for _ in range(2):
            control = RunControl()
            run = run_in_child(config("scene:demo"), control=control, forks=forks)
            for event in run.run():
                if isinstance(event, FrameReady):
                    control.cancel()


@pytest.mark.slow
def test_a_spare_process_takes_over() -> None:
    run = open_supervised()
    spares: list[int] = []

    def spare() -> int:
        child = run._worker._spare  # type: ignore[attr-defined]
        assert child is not None, "frames come"
        return child.pid

    def on_event(recorder: RunRecorder, event: Event) -> None:
        restarts = len(recorder.of(Restarted))
        if isinstance(event, FrameReady) and restarts < 2 and recorder.once(str(restarts), True):
            spares.append(spare())
            recorder.signal("frames")
        if restarts == 2 and isinstance(event, FrameReady) and recorder.once("last", True):
            spares.append(run.processes()["frames"])
            run.end()
        elif restarts == 1 and isinstance(event, FrameReady) and recorder.once("first", True):
            assert run.processes()["frames"] == spares[0]

    recorder = watch(run, on_event)
    assert recorder.frames_rise()
    assert len(spares) == 3
    assert spares[2] == spares[1] != spares[0]


class LastWords:
    """A frame process that reports its error and ends, while its parent looks the other way."""

    def __init__(self) -> None:
        self._dead = False
        self.child = self
        self.pid = 1

    def receive(self, timeout_ms: int) -> bytes | None:
        before, self._dead = self._dead, True
        return pack_report(WorkerFailed(error="SourceNotFound", message="there is no such file")) if before else None

    def exit_error(self) -> StageDied | None:
        return StageDied("frame", "its process exited with status 1") if self._dead else None


def test_the_last_words_of_a_process_are_received_before_its_death_counts() -> None:
    def worker(run: Run) -> FrameProcess:
        process, words = FrameProcess.__new__(FrameProcess), LastWords()
        process._opened, process._restarts, process._open_until_s = False, deque(), math.inf
        process._reports = process._supervisor = words  # type: ignore[assignment]
        process.stop = lambda: None  # type: ignore[method-assign]
        return process

    with pytest.raises(SourceNotFound, match="no such file"):
        Run(config(), worker)


@pytest.mark.slow
def test_a_run_that_is_made_and_never_begun_can_be_closed() -> None:
    run = open_supervised()
    assert run.source_info.name == ENDLESS
    assert set(run.processes()) == {"main", "frames", "answers"}
    with pytest.raises(TransportError, match="slot 3 holds nothing"):
        run.take_overlay(3)  # pictures stay in the frame process
    run.close()
    run.close()


@pytest.mark.slow
@pytest.mark.parametrize("process", ["frames", "answers"])
def test_a_process_that_hangs_is_noticed_and_started_again(process: str) -> None:
    run = open_supervised(settings=config(heartbeat_s=HEARTBEAT_S))

    def on_event(recorder: RunRecorder, event: Event) -> None:
        if recorder.once("stop", len(recorder.of(Answer)) == 2):
            recorder.signal(process, signal.SIGSTOP)
        if recorder.of(Restarted) and isinstance(event, Answer):
            run.end()

    recorder = watch(run, on_event)
    [(name, cause, count)] = recorder.restarts()
    assert (name, count) == (process, 1)
    assert re.fullmatch(r"its process sent no heartbeat for \d+\.\d s", cause)
    assert recorder.frames_rise()


@pytest.mark.slow
def test_an_answer_process_that_always_dies_is_a_crash_loop() -> None:
    recorder = watch(open_supervised("KilledAnswerModel", config(restart_limit=2)), fails=True)
    assert isinstance(recorder.error, StageDied)
    assert str(recorder.error) == (
        "the answer stage died: it died 2 times within a minute, the last time because its process was killed by "
        "SIGKILL; --debug shows its output, and pipeline.restart_limit allows more"
    )
    assert (recorder.summary.ended, recorder.summary.error) == ("error", str(recorder.error))
    assert [count for _, _, count in recorder.restarts()] == [1]


@pytest.mark.slow
def test_a_frame_process_that_always_dies_is_a_crash_loop() -> None:
    run = open_supervised(settings=config(restart_limit=3))

    def on_event(recorder: RunRecorder, event: Event) -> None:
        if isinstance(event, FrameReady) and recorder.once(str(run.processes()["frames"]), True):
            recorder.signal("frames")

    recorder = watch(run, on_event, fails=True)
    assert isinstance(recorder.error, StageDied)
    assert "the frame stage died: it died 3 times within a minute" in str(recorder.error)
    assert recorder.frames_rise()


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_ends_the_run_with_that() -> None:
    recorder = watch(open_supervised("open_missing"), fails=True)
    assert isinstance(recorder.error, ModelNotFound)
    assert (recorder.summary.ended, recorder.summary.error) == ("error", "there is no folder nowhere")


@pytest.mark.slow
def test_a_model_that_hangs_in_an_answer_is_killed_and_started_again() -> None:
    run = open_supervised("HangingAnswerModel", config(timeout_s=HEARTBEAT_S))

    def on_event(recorder: RunRecorder, event: Event) -> None:
        if recorder.of(Restarted) and isinstance(event, Answer):
            run.end()

    recorder = watch(run, on_event)
    assert recorder.restarts() == [("answers", f"its process sent no heartbeat for {HEARTBEAT_S:.1f} s", 1)]
    assert recorder.summary.dropped["answer.lost"] == 1


@pytest.mark.slow
def test_a_slow_reader_loses_nothing_of_a_process_that_died_meanwhile() -> None:
    run = open_supervised()

    def on_event(recorder: RunRecorder, event: Event) -> None:
        if recorder.once("kill", len(recorder.of(FrameReady)) == 10):
            time.sleep(0.7)  # more is reported meanwhile than has been read
            recorder.signal("frames")
        if recorder.of(Restarted) and isinstance(event, Answer):
            run.cancel()

    recorder = watch(run, on_event)
    assert recorder.frames_rise()
    before = recorder.events[: recorder.events.index(recorder.of(Restarted)[0])]
    assert len([event for event in before if isinstance(event, FrameReady)]) > 10


@pytest.mark.slow
def test_a_dead_spare_process_is_not_put_to_work() -> None:
    run = open_supervised()

    def on_event(recorder: RunRecorder, event: Event) -> None:
        if recorder.once("kill", len(recorder.of(Answer)) == 2):
            spare = psutil.Process(run._worker._spare.pid)  # type: ignore[attr-defined]
            spare.kill()
            until(lambda: not spare.is_running())
            recorder.signal("frames")
        if recorder.of(Restarted) and isinstance(event, FrameReady):
            run.cancel()

    assert [count for _, _, count in watch(run, on_event).restarts()] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["end", "cancel"])
@pytest.mark.parametrize("victim", [None, "frames", "answers"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_it_ends_when_asked_by_another_thread_with_any_process_dead(
    method: str, victim: str | None, number: int
) -> None:
    if victim is None and number == signal.SIGSTOP:
        pytest.skip("no process to stop")
    run = open_supervised(settings=config(heartbeat_s=HEARTBEAT_S))

    def on_event(recorder: RunRecorder, event: Event) -> None:
        if recorder.once("kill", len(recorder.of(Answer)) == 2):
            if victim is not None:
                recorder.signal(victim, number)
            teller = threading.Thread(target=getattr(run, method))
            teller.start()
            teller.join()

    recorder = watch(run, on_event)
    assert recorder.summary.ended == {"end": "interrupted", "cancel": "cancelled"}[method]


@pytest.mark.slow
def test_a_question_may_be_refused_and_the_old_one_stays() -> None:
    run = open_supervised("PickyAnswerModel")

    def on_event(recorder: RunRecorder, event: Event) -> None:
        if recorder.once("ask", len(recorder.of(Answer)) == 1):
            run.send(Ask("refuse me"))
        if recorder.once("kill", bool(recorder.of(QueryChanged))):
            recorder.signal("frames")
        if recorder.of(Restarted) and isinstance(event, Answer):
            run.end()

    recorder = watch(run, on_event)
    [change] = recorder.of(QueryChanged)
    assert change.error == "too long"
    assert {answer.query for answer in recorder.of(Answer)} == {"Say what happens."}


def watching(*, go_on: bool) -> Config:
    """The scene is bright all the time, for which this model answers yes."""
    watch = WatchConfig(question="is it there?", name="there", ends_run=not go_on, every_s=0.2)
    return config().model_copy(update={"watch": (watch,)})


def test_the_answer_that_held_before_a_death_is_not_reported_again() -> None:
    def on_event(recorder: RunRecorder, event: Event) -> None:
        if recorder.once("kill", bool(recorder.of(VerdictChanged))):
            recorder.signal("frames")
        if recorder.of(Restarted) and isinstance(event, YesNoResult):
            recorder.run.end()

    recorder = watch(open_supervised(settings=watching(go_on=True)), on_event)
    assert len(recorder.restarts()) == 1
    assert [event.to for event in recorder.of(VerdictChanged)] == ["yes"]
    assert [event.match for event in recorder.of(Match)] == [1]
    assert recorder.of(YesNoResult)[-1].holds == "yes"
    assert (recorder.summary.ended, recorder.summary.found) == ("interrupted", True)


def test_a_run_that_watches_ends_when_it_has_found_that() -> None:
    recorder = watch(open_supervised(settings=watching(go_on=False)))
    assert (recorder.summary.ended, recorder.summary.found) == ("found", True)
    assert isinstance(recorder.of(YesNoResult)[-1], YesNoResult)


@pytest.mark.slow
def test_a_reader_that_stops_reading_stops_everything() -> None:
    events = open_supervised().run()
    for event in events:
        if isinstance(event, Answer):
            break
    events.close()


@pytest.mark.slow
def test_a_file_whose_model_dies_gets_the_answers_that_it_would_have_got() -> None:
    run_config = Config(
        source="scene:moving",
        capture=CaptureConfig(size="128x96", max_frames=48),
        allocate=AllocateConfig(budget=5),
        answer=AnswerConfig(every_s=0.25),
        pipeline=PipelineConfig(restart=True),
    )

    def answers(kill_at: int | None) -> tuple[list[tuple[int, str]], int]:
        pipeline = run_in_threads(run_config, model_loader="tests.support.answer_models:FakeAnswerModel")
        received: list[Answer] = []
        restarts = 0
        for event in pipeline.run():
            restarts += isinstance(event, Restarted)
            if isinstance(event, Answer):
                received.append(event)
                if len(received) == kill_at:
                    os.kill(pipeline.processes()["answers"], signal.SIGKILL)
        return [(answer.frame_index, answer.text) for answer in received], restarts

    undisturbed, no_restarts = answers(None)
    disturbed, one_restart = answers(3)
    assert (no_restarts, one_restart) == (0, 1)
    assert disturbed == undisturbed
    assert len(disturbed) > 6


def test_a_texture_store_that_cannot_run_here_is_the_users_to_put_right() -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here, so that its store runs")
    with pytest.raises(BackendMissing, match=r"texture\.backend = cuda needs"):
        open_supervised(settings=config().model_copy(update={"texture": TextureConfig(backend="cuda")}))


def test_the_frame_process_reports_which_store_it_runs() -> None:
    require("gl")
    run_config = config().model_copy(update={"texture": TextureConfig(backend="gl")})

    def end_soon(recorder: RunRecorder, event: Event) -> None:
        if recorder.once("end", len(recorder.of(FrameReady)) > 3):
            recorder.run.end()

    recorder = watch(open_supervised(settings=run_config), end_soon)
    assert (recorder.of(Started)[0].backend, recorder.summary.backend) == ("gl", "gl")
    assert recorder.of(Started)[0].kernel == kernel_in_use()
