"""Sessions: the kind of run, its outputs, signals and the time limit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from stream.config import CaptureConfig, Config, OutputConfig, PipelineConfig
from stream.control import ELAPSED, INTERRUPTED
from stream.display.progress import ProgressDisplay
from stream.errors import OutputError, StageDied
from stream.events import Answer, Cut, Event, Notice, Summary
from stream.runtime import frame_process, frame_stages
from stream.runtime.session import (
    FINISHING,
    STOPPING,
    deliver,
    end_in_time,
    expected_frames,
    is_supervised,
    open_run,
    run_session,
    signals_end,
    with_time_of_day,
)
from stream.sinks.base import ReportingSink, Sink
from stream.sources import SourceInfo
from tests.support.events import answer, frame, summary
from tests.support.runs import INFO, EndlessRun, ScriptedRun

LIVE = ["0", "/dev/video2", "rtsp://camera/stream", "udp://0.0.0.0:5000", "http://host/live.m3u8", "zmq+tcp://host:1"]
READ_ONCE = ["-", "zmq+tcp://host:1?pull"]
FILES = ["clip.mp4", "folder", "scene:demo", "http://host/clip.mp4"]


def config(source: str, *, realtime: bool = False, **pipeline: object) -> Config:
    return Config(source=source, capture=CaptureConfig(realtime=realtime), pipeline=PipelineConfig(**pipeline))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sources", "pipeline", "supervised"),
    [
        (LIVE, {}, True),
        (LIVE, {"restart": True}, True),
        (LIVE, {"restart": False}, False),
        (FILES, {}, False),
        (FILES, {"realtime": True}, False),
        (FILES, {"restart": True}, False),
        (FILES, {"restart": True, "realtime": True}, True),
        (READ_ONCE, {}, False),
        (READ_ONCE, {"restart": True, "realtime": True}, False),
        (["0"], {"single_process": True}, False),
        (["0"], {"single_process": True, "restart": True}, False),
    ],
)
def test_live_sources_are_supervised_and_files_if_that_is_configured_and_frames_may_be_lost(
    sources: list[str], pipeline: dict[str, bool], supervised: bool
) -> None:
    assert {is_supervised(config(source, **pipeline)) for source in sources} == {supervised}


def test_a_run_with_a_heat_map_is_supervised() -> None:
    assert is_supervised(config("0").with_values({"heatmap.file": "seen.mp4"}))


def test_the_run_is_made_accordingly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_stages, "run_in_threads", lambda run_config, answers: ("here", run_config.source))
    monkeypatch.setattr(frame_process, "run_in_child", lambda run_config: ("supervised", run_config.source))
    assert open_run(config("clip.mp4")) == ("here", "clip.mp4")
    assert open_run(config("0")) == ("supervised", "0")


class FullSink(Sink):
    """Fails every write; `run_was_closed`: the run had been stopped when the sink was closed."""

    def __init__(self, run: ScriptedRun) -> None:
        self._run = run
        self.run_was_closed: bool | None = None

    def write(self, event: Event) -> None:
        raise OutputError("the disk is full")

    def close(self) -> None:
        self.run_was_closed = self._run.closed


def config_of_session(tmp_path: Path) -> Config:
    return Config(source="a.mp4", output=OutputConfig(paths=(str(tmp_path / "a.jsonl"), str(tmp_path / "a.vtt"))))


def test_every_output_gets_every_event(tmp_path: Path) -> None:
    run = ScriptedRun([frame(0, 0.0), answer(0.0, "hello"), summary()])
    result = run_session(config_of_session(tmp_path), ProgressDisplay(captions=False), make_run=lambda _: run)
    assert isinstance(result, Summary)
    assert "hello" in (tmp_path / "a.vtt").read_text(encoding="utf-8")
    assert len((tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_a_run_that_dies_leaves_its_answers(tmp_path: Path) -> None:
    run = ScriptedRun([answer(0.0, "hello")], StageDied("answer", "it fell"))
    with pytest.raises(StageDied):
        run_session(config_of_session(tmp_path), ProgressDisplay(captions=False), make_run=lambda _: run)
    assert "hello" in (tmp_path / "a.vtt").read_text(encoding="utf-8")


def test_a_source_that_cannot_be_opened_destroys_nothing(tmp_path: Path) -> None:
    old = tmp_path / "a.vtt"
    old.write_text("yesterday", encoding="utf-8")

    with pytest.raises(StageDied):
        run_session(
            config_of_session(tmp_path),
            ProgressDisplay(captions=False),
            make_run=Mock(side_effect=StageDied("capture", "no such file")),
        )
    assert old.read_text(encoding="utf-8") == "yesterday"
    assert not (tmp_path / "a.jsonl").exists()


def test_an_output_that_fails_stops_the_run_and_closes_the_others(tmp_path: Path) -> None:
    run = ScriptedRun([answer(0.0, "hello"), summary()])
    full = FullSink(run)
    with pytest.raises(OutputError, match="full"):
        run_session(config_of_session(tmp_path), ProgressDisplay(captions=False), extra=[full], make_run=lambda _: run)
    assert full.run_was_closed
    assert "hello" in (tmp_path / "a.jsonl").read_text(encoding="utf-8")


class Reporter(ReportingSink):
    """Sink that reports each answer as a note, and its end before the summary."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.notices: list[Event] = []

    def write(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Answer):
            self.notices.append(Notice(code="made", message=event.text))

    def take_events(self, upcoming: Event) -> list[Event]:
        notices, self.notices = self.notices, []
        return [*notices, Notice(code="made", message="the end")] if isinstance(upcoming, Summary) else notices

    def close(self) -> None:
        pass


def test_events_of_sinks_reach_all_sinks_before_the_next_event_and_the_summary_is_last() -> None:
    first, reporter = Mock(), Reporter()
    deliver(iter([answer(0.0, "a cat"), frame(1, 0.1), summary()]), [first, reporter])
    for events in ([call.args[0] for call in first.write.call_args_list], reporter.events):
        assert [getattr(event, "message", type(event).__name__) for event in events] == [
            *("Answer", "a cat", "FrameReady", "the end", "Summary"),
        ]


def test_events_of_a_live_source_have_the_local_time_of_their_frame() -> None:
    noon = time.mktime((2026, 1, 2, 12, 0, 0, 0, 0, -1))
    early, late = Cut(frame_index=0, pts_s=0.5, score=1.0), answer(5.0, "a cat")
    events = [early, frame(3, 7.0, capture_ns=0, ready_ns=500_000_000), late, Notice(code="x", message="x"), summary()]
    timed = list(with_time_of_day(iter(events), lambda: noon + 0.5))
    assert [None if event.time is None else datetime.fromisoformat(event.time) for event in timed] == [
        *(None, None, datetime.fromtimestamp(noon - 2).astimezone(), None, None),
    ]
    assert timed[2] == replace(late, time=timed[2].time)


def test_a_run_without_a_summary_is_impossible() -> None:
    with pytest.raises(AssertionError, match="summary"):
        deliver(iter([]), [])


def test_the_first_signal_ends_the_second_cancels_the_third_kills(capfd: pytest.CaptureFixture[str]) -> None:
    run, before = ScriptedRun([]), signal.getsignal(signal.SIGINT)
    with signals_end(run, ProgressDisplay(captions=False)):
        os.kill(os.getpid(), signal.SIGINT)
        assert run.calls == [INTERRUPTED]
        os.kill(os.getpid(), signal.SIGTERM)
        assert run.calls == [INTERRUPTED, "cancel"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr().err == f"{FINISHING[signal.SIGINT]}\n{STOPPING}\n"


@pytest.mark.parametrize(
    ("number", "remark"),
    [
        (signal.SIGTERM, "SIGTERM: finishing what is in flight; a second one stops now"),
        (signal.SIGHUP, "SIGHUP, the terminal is gone: finishing what is in flight; SIGTERM stops now"),
    ],
)
def test_without_a_keyboard_no_key_is_asked_for(number: int, remark: str, capfd: pytest.CaptureFixture[str]) -> None:
    run = ScriptedRun([])
    with signals_end(run, ProgressDisplay(captions=False)):
        os.kill(os.getpid(), number)
    assert run.calls == [INTERRUPTED]
    assert capfd.readouterr().err == f"{remark}\n"


def test_a_terminal_that_is_closed_sends_several_signals_and_ends_the_run_once() -> None:
    run = ScriptedRun([])
    with signals_end(run, ProgressDisplay(captions=False)):
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert run.calls == [INTERRUPTED]
        os.kill(os.getpid(), signal.SIGTERM)
        assert run.calls == [INTERRUPTED, "cancel"]


def test_under_nohup_a_closed_terminal_ends_nothing() -> None:
    run, before = ScriptedRun([]), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_end(run, ProgressDisplay(captions=False)):
            os.kill(os.getpid(), signal.SIGHUP)
            assert run.calls == []
            os.kill(os.getpid(), signal.SIGTERM)
            assert run.calls == [INTERRUPTED]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_frames_to_expect_come_from_the_container_and_the_limit() -> None:
    assert expected_frames(INFO, CaptureConfig()) == 50
    assert expected_frames(INFO, CaptureConfig(max_frames=7)) == 7
    assert expected_frames(INFO, CaptureConfig(start_s=1.5)) == 12
    assert expected_frames(INFO, CaptureConfig(start_s=1.0, duration_s=0.4)) == 10
    assert expected_frames(INFO, CaptureConfig(start_s=9.0)) == 0
    unknown = SourceInfo("a", 64, 64, None, None, None, False, "h264", "yuv420p")
    assert expected_frames(unknown, CaptureConfig()) is None
    assert expected_frames(unknown, CaptureConfig(max_frames=7)) == 7


def test_a_run_whose_time_is_over_ends_well_and_reports_it(tmp_path: Path) -> None:
    run = EndlessRun([frame(0, 0.0)])
    result = run_session(
        config_of_session(tmp_path), ProgressDisplay(captions=False), make_run=lambda _: run, limit_s=0.01
    )
    assert result.ended == ELAPSED
    assert run.calls == [ELAPSED]
    assert '"ended":"elapsed"' in (tmp_path / "a.jsonl").read_text(encoding="utf-8")


class FakeTimer:
    """Expires when the test calls it."""

    def __init__(self, seconds: float, call: Callable[[str], None], arguments: list[str]) -> None:
        self.seconds, self.go_off = seconds, lambda: call(*arguments)
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def cancel(self) -> None:
        self.calls.append("cancel")


class Case:
    """A limited run and its timer."""

    def __init__(self, events: list[Event]) -> None:
        self.run = ScriptedRun(events)
        self.timers: list[FakeTimer] = []
        self.events = end_in_time(self.run.run(), self.run, 60.0, self.timer)

    def timer(self, seconds: float, call: Callable[[str], None], arguments: list[str]) -> FakeTimer:
        self.timers.append(FakeTimer(seconds, call, arguments))
        return self.timers[-1]


def test_the_time_begins_with_the_first_frame() -> None:
    case = Case([answer(0.0, "a"), frame(0, 0.0), frame(1, 0.1), summary()])
    next(case.events)
    (timer,) = case.timers
    assert timer.calls == []
    next(case.events)
    assert (timer.seconds, timer.calls) == (60, ["start"])
    assert isinstance(list(case.events)[-1], Summary)
    assert timer.calls == ["start", "cancel"]


def test_a_run_whose_time_is_over_reports_why_it_ends() -> None:
    case = Case([frame(0, 0.0), summary()])
    next(case.events)
    case.timers[0].go_off()
    assert case.run.calls == [ELAPSED]


def test_a_run_that_is_given_up_leaves_no_timer() -> None:
    case = Case([frame(0, 0.0), summary()])
    next(case.events)
    case.events.close()
    assert case.timers[0].calls == ["start", "cancel"]
