"""ChildProcess processes: what they are told, how they end, and what is said of it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest

from stream.errors import StageDied
from stream.runtime import child as child_module
from stream.runtime.child import BEAT_S, ChildProcess
from tests.waiting import until

MakeChild = Callable[..., ChildProcess]


@pytest.fixture
def make() -> Iterator[MakeChild]:
    made: list[ChildProcess] = []

    def one(order: str = "", **environment: str) -> ChildProcess:
        child = ChildProcess("answer", "tests.fake_child", environment=environment)
        made.append(child)
        if order:
            child.send_line(order.encode())
        return child

    yield one
    for child in made:
        child.stop()
    assert psutil.Process().children() == []


def death_of(child: ChildProcess) -> StageDied:
    until(lambda: child.exit_error() is not None)
    death = child.exit_error()
    assert death is not None
    return death


def test_a_child_that_lives_has_not_died(make: MakeChild) -> None:
    child = make("wait")
    assert child.exit_error() is None
    assert not child.died_by_signal
    assert os.getsid(child.pid) != os.getsid(0), "Ctrl-C would reach it"


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGTERM, "SIGTERM"), (40, "signal 40")]
)
def test_a_death_by_a_signal_is_told_with_its_name(make: MakeChild, number: int, name: str) -> None:
    child = make()
    os.kill(child.pid, number)
    assert str(death_of(child)) == f"the answer stage died: its process was killed by {name}"
    assert child.died_by_signal


def test_the_last_line_that_it_printed_says_why(make: MakeChild, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "stream.runtime.child")
    child = make("exit 3 no more memory")
    death = death_of(child)
    assert (death.stage, death.cause) == ("answer", "its process exited with status 3 (no more memory)")
    assert not child.died_by_signal
    assert "the answer process printed: no more memory" in caplog.text


def test_without_a_word_the_status_is_all_there_is(make: MakeChild) -> None:
    assert death_of(make("exit 1")).cause == "its process exited with status 1"


def test_a_child_that_hangs_died_of_its_silence(make: MakeChild) -> None:
    child = make("wait")
    child.kill(hung_s=5.04)
    assert death_of(child).cause == "its process gave no sign of life for 5.0 s"


def test_it_hears_the_pulse(make: MakeChild) -> None:
    child = make()
    assert child.silence_s() == 0
    child.send_line(f"beat {child.heartbeat_writer}".encode())
    until(lambda: child.silence_s() > 0)
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: child.silence_s() > 1.2 * BEAT_S)
    child.kill()


def test_stopping_ends_it_by_the_end_of_its_stdin(make: MakeChild) -> None:
    child = make("wait")
    seen = psutil.Process(child.pid)
    child.stop()
    assert not seen.is_running()
    assert child.silence_s() == 0
    child.stop()


def test_a_child_that_ignores_the_end_of_its_stdin_is_killed(
    make: MakeChild, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "stream.runtime.child")
    monkeypatch.setattr(child_module, "STOP_LIMIT_S", 0.01)
    child = make("stay")
    child.stop()
    assert child.died_by_signal
    assert "did not end within 0.01 s and is killed" in caplog.text


def test_a_stopped_child_is_killed_too(make: MakeChild, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "STOP_LIMIT_S", 0.01)
    child = make("wait")
    os.kill(child.pid, signal.SIGSTOP)
    child.stop()
    assert child.died_by_signal


def test_who_is_gone_need_not_be_told(make: MakeChild) -> None:
    child = make("exit 0")
    death_of(child)
    child.send_line(b"anything")
    child.stop()
    child.send_line(b"anything")


def test_after_it_was_stopped_its_death_has_no_last_line(make: MakeChild) -> None:
    child = make("exit 3 no more memory")
    death_of(child)
    child.stop()
    assert death_of(child).cause == "its process exited with status 3"


def test_it_has_the_environment_that_it_was_given(make: MakeChild) -> None:
    child = make("tell", FAKE_CHILD="here")
    until(lambda: "here" in child._printed())
