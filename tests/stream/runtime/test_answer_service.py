"""Answer process that runs hold: one for all of them, started again after a death, and stopped after the last."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing

import psutil
import pytest

from arr_coc.types import NS_PER_S
from stream.control import RunControl
from stream.errors import StageDied
from stream.events import Answer, Restarted
from stream.runtime import answer_service
from stream.runtime.answer_service import AnswerService
from stream.runtime.frame_process import run_in_child
from stream.transport import SocketDirectory
from tests.stream.runtime.test_child import FakeChild
from tests.support.children import own_children
from tests.support.clock import FakeClock
from tests.support.network import until
from tests.support.runs import config

MODELS = "tests.support.answer_models"


class FakeService(AnswerService):
    """A service whose processes are objects of this process."""

    def __init__(self, clock: FakeClock, *, restart: bool) -> None:
        super().__init__(config(), clock, restart=restart)
        self.children: list[FakeChild] = []

    def _start_process(self, directory: SocketDirectory) -> FakeChild:  # type: ignore[override]
        self._started_ns = self._clock.now_ns()
        self.children.append(FakeChild(len(self.children) + 1))
        return self.children[-1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    monkeypatch.setattr(answer_service, "POLL_S", 0.001)
    return FakeClock()


def test_the_first_holder_starts_the_process_and_the_last_one_stops_it(clock: FakeClock) -> None:
    service = FakeService(clock, restart=True)
    assert service.pid is None
    with service.hold():
        with service.hold():
            assert service.pid == 1
        assert not service.children[0].stopped
    assert service.children[0].stopped
    assert service.pid is None
    with service.hold():
        assert service.pid == 2


def test_every_holder_is_given_the_restarts_since_it_holds_the_process(clock: FakeClock) -> None:
    service, control = FakeService(clock, restart=True), RunControl()
    with service.hold() as first, service.hold(control) as second:
        service.children[0].die("killed")
        until(lambda: clock.advance(NS_PER_S) or second)  # the supervisor may have looked just before the death
        assert list(first) == list(second) == [Restarted(process="answers", cause="killed", count=1)]
        assert service.pid == 2
        with service.hold() as third:
            assert not third
    assert control.failure is None


def test_a_process_that_is_not_started_again_fails_the_runs_once_its_last_report_has_had_time(clock: FakeClock) -> None:
    service, control, other = FakeService(clock, restart=False), RunControl(), RunControl()
    with service.hold(control), service.hold(), service.hold(other):
        other.cancel()
        service.children[0].die("killed")
        clock.advance(NS_PER_S * 4 // 10)
        assert control.failure is None
        until(lambda: clock.advance(NS_PER_S) or control.failure)
        assert control.failure is service.children[0].exit_error()
        assert other.failure is None, "it was cancelled before"
        with service.hold():
            assert service.pid == 2


def test_a_dead_process_is_replaced_for_the_next_holder(clock: FakeClock) -> None:
    service = FakeService(clock, restart=False)
    with service.hold() as restarts:
        service.children[0].die("killed")
        with service.hold():
            assert service.pid == 2
        assert not restarts


def test_one_silence_kills_one_process_however_many_runs_report_it(clock: FakeClock) -> None:
    service = FakeService(clock, restart=True)
    with service.hold() as restarts:
        service.report_hung()
        assert service.children[0].hung_s is None, "it was started a moment ago"
        clock.advance(1_000 * NS_PER_S)
        service.report_hung()
        assert service.children[0].hung_s is not None
        until(lambda: clock.advance(NS_PER_S // 10) or restarts)  # the supervisor checks ten times a second
        service.report_hung()
        assert service.children[1].hung_s is None
    service.report_hung()


def watch(service: AnswerService, answers: int = 1) -> tuple[list[str], list[Restarted]]:
    """Answers of a new run, and the restarts that it reports."""
    restarts, texts = list[Restarted](), list[str]()
    with closing(run_in_child(config(), answers=service)) as run:
        for event in run.run():
            if isinstance(event, Restarted):
                restarts.append(event)
            elif isinstance(event, Answer):
                texts.append(event.text)
                if len(texts) == answers:
                    run.end()
    return texts[:answers], restarts


def test_the_process_stays_from_run_to_run_and_is_restarted_between_them() -> None:
    service = AnswerService(config(), runs=1, model_loader=f"{MODELS}:FakeAnswerModel")
    with service.hold():
        first = service.pid
        assert watch(service)[0]
        assert watch(service)[1] == []
        assert service.pid == first
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: service.pid != first)
        assert watch(service)[1] == [], "it was before this run"
        second = service.pid
    assert not psutil.pid_exists(second or 0)
    assert own_children() == []


def test_warnings_of_its_log_reach_the_user(caplog: pytest.LogCaptureFixture) -> None:
    """What the process prints is not shown."""
    service = AnswerService(config(), runs=1, model_loader=f"{MODELS}:WarningAnswerModel")
    with service.hold():
        watch(service)
    records = [record for record in caplog.records if record.name == MODELS]
    loaded, answered = [(record.levelname, record.getMessage()) for record in records][:2]
    assert loaded == ("WARNING", "loaded with care")
    # a busy machine answers a later frame first
    assert re.fullmatch(r"frame \d+ is answered", answered[1])
    assert answered[0] == "WARNING"


def test_a_process_that_cannot_be_kept_alive_ends_the_run_and_not_the_next() -> None:
    service = AnswerService(config(restart_limit=1), runs=1, model_loader=f"{MODELS}:KilledAnswerModel")
    with ExitStack() as stack:
        stack.enter_context(service.hold())
        for _ in range(2):
            with pytest.raises(StageDied, match="died once within a minute"):
                watch(service, answers=2)
