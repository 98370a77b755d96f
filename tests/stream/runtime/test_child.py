"""ChildProcess processes: their input, how they end, and the message about it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from arr_coc.types import NS_PER_S
from stream.config import PipelineConfig
from stream.errors import StageDied
from stream.events import Restarted
from stream.runtime import child as child_module
from stream.runtime.child import (
    BEAT_S,
    LOADING,
    READY,
    ChildProcess,
    Heartbeat,
    HeartbeatMonitor,
    ProcessSupervisor,
)
from stream.runtime.fork_server import can_fork
from tests.support.children import SHARED, SharedForkServer, own_children
from tests.support.clock import FakeClock
from tests.support.network import LIMIT_S, until

MakeChild = Callable[..., ChildProcess]


@pytest.fixture(scope="module", params=["started", "forked"])
def forks(request: pytest.FixtureRequest) -> SharedForkServer | None:
    """A fork server, or none: a child is the same either way."""
    if request.param == "forked" and not can_fork():
        pytest.skip("processes are not forked on this system, or beside its GPU driver")
    return SHARED if request.param == "forked" else None


@pytest.fixture
def make(forks: SharedForkServer | None) -> Iterator[MakeChild]:
    children: list[ChildProcess] = []

    def start(order: str = "", **environment: str) -> ChildProcess:
        child = ChildProcess("answer", "tests.support.child", environment=environment, forks=forks)  # type: ignore[arg-type]
        assert (psutil.Process(child.pid).ppid() == os.getpid()) == (forks is None)
        children.append(child)
        if order:
            child.send_line(order.encode())
        return child

    yield start
    for child in children:
        child.stop()
    assert own_children() == []


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


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (40, "signal 40")])
def test_a_death_by_a_signal_is_reported_with_its_name(make: MakeChild, number: int, name: str) -> None:
    child = make()
    os.kill(child.pid, number)
    assert str(death_of(child)) == f"the answer stage died: its process was killed by {name}"
    assert child.died_by_signal


def test_its_last_printed_line_is_the_reason(make: MakeChild, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "stream.runtime.child")
    child = make("exit 3 no more memory")
    death = death_of(child)
    assert (death.stage, death.cause) == ("answer", "its process exited with status 3 (no more memory)")
    assert not child.died_by_signal
    assert "the answer process printed: no more memory" in caplog.text
    child.stop()
    assert death_of(child).cause == "its process exited with status 3", "its output is closed"


def test_an_output_of_the_parent_takes_what_the_child_prints(forks: SharedForkServer | None, tmp_path: Path) -> None:
    child = ChildProcess(
        "answer", "tests.support.child", forks=forks, output=(tmp_path / "printed").open("wb", buffering=0)
    )
    child.send_line(b"exit 3 no more memory")
    assert death_of(child).cause == "its process exited with status 3"
    child.stop()
    assert (tmp_path / "printed").read_text() == "no more memory\n"


def test_it_receives_the_heartbeat(make: MakeChild) -> None:
    child = make()
    assert child.silence_s() == 0
    child.send_line(f"beat {child.heartbeat_writer}".encode())
    until(lambda: child.silence_s() > 0)
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: child.silence_s() > 1.2 * BEAT_S)
    child.kill(hung_s=5.04)
    assert death_of(child).cause == "its process sent no heartbeat for 5.0 s"


def test_stopping_ends_it_by_the_end_of_its_stdin(make: MakeChild) -> None:
    child = make("wait")
    process = psutil.Process(child.pid)
    child.stop()
    assert not process.is_running()
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


def test_a_process_that_ended_gets_no_message(make: MakeChild) -> None:
    child = make("exit 0")
    death_of(child)
    child.send_line(b"anything")
    child.stop()
    child.send_line(b"anything")


def test_it_has_the_environment_that_it_was_given(make: MakeChild) -> None:
    child = make("print", FAKE_CHILD="here")
    until(lambda: "here" in child._printed())


MS = 1_000_000


class FakeChild:
    """Lives until it is made to die."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.died_by_signal = self.stopped = False
        self.silent_s = 0.0
        self.hung_s: float | None = None
        self._death: StageDied | None = None

    def die(self, cause: str, *, by_signal: bool = True) -> None:
        self.died_by_signal = by_signal  # first: another thread takes the death as complete
        self._death = StageDied("answer", cause)

    def silence_s(self) -> float:
        return self.silent_s

    def kill(self, hung_s: float | None = None) -> None:
        self.hung_s = hung_s
        self.die(f"silent for {hung_s} s")

    def exit_error(self) -> StageDied | None:
        return self._death

    def stop(self) -> None:
        self.stopped = True


class SupervisorHarness:
    """A supervisor, its clock, and every child that it has started."""

    def __init__(self, rules: PipelineConfig) -> None:
        self.clock = FakeClock()
        self.children: list[FakeChild] = []
        self.supervisor = ProcessSupervisor("answers", self._start, rules, self.clock)  # type: ignore[arg-type]

    def _start(self) -> FakeChild:
        self.children.append(FakeChild(len(self.children)))
        return self.children[-1]

    def restarts(self) -> int:
        restarted = self.supervisor.poll()
        assert restarted is not None
        return restarted.count


RESTART = PipelineConfig(restart=True, restart_limit=3, heartbeat_s=5)


def test_while_it_lives_nothing_happens() -> None:
    harness = SupervisorHarness(RESTART)
    assert harness.supervisor.poll() is None
    assert len(harness.children) == 1


def test_a_death_by_a_signal_has_no_last_words_and_is_mended_at_once() -> None:
    harness = SupervisorHarness(RESTART)
    harness.children[0].die("killed by SIGKILL")
    assert harness.supervisor.poll() == Restarted(process="answers", cause="killed by SIGKILL", count=1)
    assert harness.children[0].stopped
    assert harness.supervisor.child.pid == 1
    assert harness.supervisor.poll() is None


def test_one_that_exited_may_still_be_received() -> None:
    harness = SupervisorHarness(RESTART)
    harness.children[0].die("exited with status 1", by_signal=False)
    assert harness.supervisor.poll() is None
    harness.clock.advance(499 * MS)
    assert harness.supervisor.poll() is None
    harness.clock.advance(MS)
    assert harness.supervisor.poll() == Restarted(process="answers", cause="exited with status 1", count=1)


def test_each_death_has_its_own_last_words() -> None:
    harness = SupervisorHarness(RESTART)
    for number in range(2):
        harness.children[number].die("exited", by_signal=False)
        assert harness.supervisor.poll() is None
        harness.clock.advance(NS_PER_S)
        assert harness.supervisor.poll() is not None


@pytest.mark.parametrize("by_signal", [True, False])
def test_without_restarts_a_death_is_raised_once_it_could_be_explained(by_signal: bool) -> None:
    harness = SupervisorHarness(PipelineConfig(restart=False))
    harness.children[0].die("gone", by_signal=by_signal)
    assert harness.supervisor.poll() is None
    harness.clock.advance(500 * MS)
    with pytest.raises(StageDied, match="the answer stage died: gone"):
        harness.supervisor.poll()
    assert len(harness.children) == 1


def test_silence_beyond_the_limit_is_a_death() -> None:
    harness = SupervisorHarness(RESTART)
    harness.children[0].silent_s = 5.0
    assert harness.supervisor.poll() is None
    harness.children[0].silent_s = 5.2
    assert harness.supervisor.poll() is None, "a child that is well is checked ten times a second, however often polled"
    harness.clock.advance(100 * MS)
    assert harness.supervisor.poll() == Restarted(process="answers", cause="silent for 5.2 s", count=1)
    assert harness.children[0].hung_s == 5.2


def test_silence_may_be_minded_alone() -> None:
    harness = SupervisorHarness(RESTART)
    harness.children[0].silent_s = 5.2
    harness.supervisor.kill_if_hung()
    assert harness.children[0].died_by_signal
    assert len(harness.children) == 1


def test_a_crash_loop_is_given_up_with_the_last_cause() -> None:
    harness = SupervisorHarness(RESTART)
    for number in range(2):
        harness.children[number].die("killed by SIGSEGV")
        assert harness.restarts() == number + 1
        harness.clock.advance(20 * NS_PER_S)
    harness.children[2].die("exited with status 3 (no more memory)")
    with pytest.raises(StageDied) as raised:
        harness.supervisor.poll()
    assert str(raised.value) == (
        "the answer stage died: it died 3 times within a minute, the last time because exited with status 3 "
        "(no more memory); --debug shows its output, and pipeline.restart_limit allows more"
    )


def test_deaths_that_lie_far_apart_are_no_loop() -> None:
    harness = SupervisorHarness(RESTART)
    for number in range(10):
        harness.children[number].die("killed")
        assert harness.restarts() == number + 1
        harness.clock.advance(30 * NS_PER_S)


def test_a_limit_of_one_allows_no_restart() -> None:
    harness = SupervisorHarness(PipelineConfig(restart=True, restart_limit=1))
    harness.children[0].die("killed")
    with pytest.raises(StageDied, match="died once within a minute"):
        harness.supervisor.poll()


def test_deaths_that_are_forgiven_make_no_loop() -> None:
    harness = SupervisorHarness(RESTART)
    for number in range(10):
        harness.supervisor.reset_crash_count()
        harness.children[number].die("the camera is away")
        assert harness.restarts() == number + 1


@pytest.fixture
def reader() -> Iterator[HeartbeatMonitor]:
    monitor = HeartbeatMonitor()
    yield monitor
    monitor.close_writer()
    monitor.close()


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(child_module.time, "monotonic", lambda: now[0])
    return now


class Beating:
    """Called by a Heartbeat before each beat; `stop` returns once there will be no other one."""

    def __init__(self) -> None:
        self.calls = 0
        self._stopping = False
        self._stopped = threading.Event()
        self._thrice = threading.Event()

    def __call__(self) -> bool:
        self.calls += 1
        if self.calls > 2:
            self._thrice.set()
        if self._stopping:
            self._stopped.set()
        return not self._stopping

    def some(self) -> None:
        assert self._thrice.wait(LIMIT_S)

    def stop(self) -> None:
        self._stopping = True
        assert self._stopped.wait(LIMIT_S)


@pytest.fixture
def beating(monkeypatch: pytest.MonkeyPatch) -> Iterator[Beating]:
    monkeypatch.setattr(child_module, "BEAT_S", 0.01)
    activity = Beating()
    yield activity
    activity.stop()


def test_silence_counts_from_the_last_beat(seconds: list[float], reader: HeartbeatMonitor) -> None:
    seconds[0] += 2
    os.write(reader.writer, READY)
    assert reader.silence_s() == 0
    seconds[0] += 1.5
    assert reader.silence_s() == 1.5
    os.write(reader.writer, READY * 3)
    assert reader.silence_s() == 0


def test_a_process_that_loads_is_not_expected_to_beat(seconds: list[float], reader: HeartbeatMonitor) -> None:
    seconds[0] += 100
    assert reader.silence_s() == 0
    os.write(reader.writer, LOADING)
    assert reader.silence_s() == 0
    seconds[0] += 100
    assert reader.silence_s() == 0


def test_once_ready_it_stays_so(seconds: list[float], reader: HeartbeatMonitor) -> None:
    os.write(reader.writer, LOADING + READY + LOADING)
    reader.silence_s()
    os.write(reader.writer, LOADING)
    reader.silence_s()
    seconds[0] += 3
    assert reader.silence_s() == 3


def test_the_child_first_reports_loading_then_readiness(reader: HeartbeatMonitor, beating: Beating) -> None:
    heartbeat = Heartbeat(reader.writer, beating)
    beating.some()
    assert set(os.read(reader._reader, 100)) == {LOADING[0]}
    heartbeat.ready()
    calls = beating.calls
    while beating.calls < calls + 3:
        threading.Event().wait(0.01)
    assert READY in os.read(reader._reader, 100)


def test_a_child_that_is_not_lively_is_silent(reader: HeartbeatMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "BEAT_S", 0.01)
    beating = Beating()
    beating._stopping = True
    Heartbeat(reader.writer, beating).ready()
    beating.some()
    with pytest.raises(BlockingIOError):
        os.read(reader._reader, 100)


def test_a_full_pipe_does_not_block(reader: HeartbeatMonitor, beating: Beating) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(reader.writer, LOADING * 4096)
    Heartbeat(reader.writer, beating)
    beating.some()
    assert reader.silence_s() == 0


def test_a_parent_that_is_gone_disturbs_no_child(monkeypatch: pytest.MonkeyPatch, beating: Beating) -> None:
    reader = HeartbeatMonitor()
    reader.close()
    Heartbeat(reader.writer, beating)
    beating.some()
    beating.stop()
    reader.close_writer()
