"""A session delivers every event, closes every output however it ends, and obeys signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.config import CaptureConfig, Config, OutputConfig
from stream.errors import OutputError, StageDied
from stream.events import Event, Summary
from stream.overlay import Overlay
from stream.session import FINISHING, STOPPING, deliver, expected_frames, run_session, signals_end
from stream.sinks.base import Sink
from stream.sinks.terminal import TerminalSink
from stream.sources import SourceInfo
from tests.event_maker import answer, frame, summary

INFO = SourceInfo("a", 64, 64, 25.0, 2_000_000_000, None, False, "h264", "yuv420p")


class ScriptedRun:
    """Gives the events, and then raises the error, if any."""

    source_info = INFO

    def __init__(self, events: list[Event], error: Exception | None = None) -> None:
        self.events, self.error = events, error
        self.told: list[str] = []
        self.closed = False

    def run(self) -> Iterator[Event]:
        try:
            yield from self.events
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True

    def take_overlay(self, slot: int) -> Overlay:
        raise AssertionError("no overlays here")

    def end(self) -> None:
        self.told.append("end")

    def cancel(self) -> None:
        self.told.append("cancel")


class FullSink(Sink):
    """Takes nothing; `run_was_closed` tells whether the run had been stopped when the sink was closed."""

    def __init__(self, run: ScriptedRun) -> None:
        self._run = run
        self.run_was_closed: bool | None = None

    def write(self, event: Event) -> None:
        raise OutputError("the disk is full")

    def close(self) -> None:
        self.run_was_closed = self._run.closed


def config(tmp_path: Path) -> Config:
    return Config(source="a.mp4", output=OutputConfig(paths=(str(tmp_path / "a.jsonl"), str(tmp_path / "a.vtt"))))


def test_every_output_gets_every_event(tmp_path: Path) -> None:
    run = ScriptedRun([frame(0, 0.0), answer(0.0, "hello"), summary()])
    told = run_session(config(tmp_path), TerminalSink(captions=False), make_run=lambda _: run)
    assert isinstance(told, Summary)
    assert "hello" in (tmp_path / "a.vtt").read_text(encoding="utf-8")
    assert len((tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_a_run_that_dies_leaves_what_was_said(tmp_path: Path) -> None:
    run = ScriptedRun([answer(0.0, "hello")], StageDied("answer", "it fell"))
    with pytest.raises(StageDied):
        run_session(config(tmp_path), TerminalSink(captions=False), make_run=lambda _: run)
    assert "hello" in (tmp_path / "a.vtt").read_text(encoding="utf-8")


def test_a_source_that_cannot_be_opened_destroys_nothing(tmp_path: Path) -> None:
    old = tmp_path / "a.vtt"
    old.write_text("yesterday", encoding="utf-8")

    def fail(config: Config) -> ScriptedRun:
        raise StageDied("capture", "no such file")

    with pytest.raises(StageDied):
        run_session(config(tmp_path), TerminalSink(captions=False), make_run=fail)
    assert old.read_text(encoding="utf-8") == "yesterday"
    assert not (tmp_path / "a.jsonl").exists()


def test_an_output_that_fails_stops_the_run_and_closes_the_others(tmp_path: Path) -> None:
    run = ScriptedRun([answer(0.0, "hello"), summary()])
    full = FullSink(run)
    with pytest.raises(OutputError, match="full"):
        run_session(config(tmp_path), TerminalSink(captions=False), extra=[full], make_run=lambda _: run)
    assert full.run_was_closed
    assert "hello" in (tmp_path / "a.jsonl").read_text(encoding="utf-8")


def test_a_run_without_a_summary_is_impossible() -> None:
    with pytest.raises(AssertionError, match="summary"):
        deliver(iter([]), [])


def test_the_first_signal_ends_the_second_cancels_the_third_kills(capfd: pytest.CaptureFixture[str]) -> None:
    run, before = ScriptedRun([]), signal.getsignal(signal.SIGINT)
    with signals_end(run, TerminalSink(captions=False)):
        os.kill(os.getpid(), signal.SIGINT)
        assert run.told == ["end"]
        os.kill(os.getpid(), signal.SIGTERM)
        assert run.told == ["end", "cancel"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr().err == f"{FINISHING}\n{STOPPING}\n"


def test_frames_to_expect_come_from_the_container_and_the_limit() -> None:
    assert expected_frames(INFO, None) == 50
    assert expected_frames(INFO, CaptureConfig(max_frames=7).max_frames) == 7
    unknown = SourceInfo("a", 64, 64, None, None, None, False, "h264", "yuv420p")
    assert expected_frames(unknown, None) is None
    assert expected_frames(unknown, 7) == 7
