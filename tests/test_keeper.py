"""A child under watch: started again, waited for, and given up, all with children that are none."""

from __future__ import annotations

import pytest

from arr_coc.types import NS_PER_S
from stream.clock import FakeClock
from stream.errors import StageDied
from stream.events import Restarted
from stream.runtime.child import ProcessSupervisor, RestartPolicy

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
        self._death, self.died_by_signal = StageDied("answer", cause), by_signal

    def silence_s(self) -> float:
        return self.silent_s

    def kill(self, hung_s: float | None = None) -> None:
        self.hung_s = hung_s
        self.die(f"silent for {hung_s} s")

    def exit_error(self) -> StageDied | None:
        return self._death

    def stop(self) -> None:
        self.stopped = True


class Kept:
    """A supervisor, its clock, and every child that it has started."""

    def __init__(self, rules: RestartPolicy) -> None:
        self.clock = FakeClock()
        self.children: list[FakeChild] = []
        self.supervisor = ProcessSupervisor("answers", self._start, rules, self.clock)  # type: ignore[arg-type]

    def _start(self) -> FakeChild:
        self.children.append(FakeChild(len(self.children)))
        return self.children[-1]


RESTART = RestartPolicy(restart=True, limit=3, heartbeat_s=5)


def test_while_it_lives_nothing_happens() -> None:
    kept = Kept(RESTART)
    assert kept.supervisor.poll() is None
    assert len(kept.children) == 1


def test_a_death_by_a_signal_has_no_last_words_and_is_mended_at_once() -> None:
    kept = Kept(RESTART)
    kept.children[0].die("killed by SIGKILL")
    assert kept.supervisor.poll() == Restarted(process="answers", cause="killed by SIGKILL", count=1)
    assert kept.children[0].stopped
    assert kept.supervisor.child.pid == 1
    assert kept.supervisor.poll() is None


def test_one_that_exited_may_still_be_heard() -> None:
    kept = Kept(RESTART)
    kept.children[0].die("exited with status 1", by_signal=False)
    assert kept.supervisor.poll() is None
    kept.clock.advance(499 * MS)
    assert kept.supervisor.poll() is None
    kept.clock.advance(MS)
    assert kept.supervisor.poll() == Restarted(process="answers", cause="exited with status 1", count=1)


def test_each_death_has_last_words_of_its_own() -> None:
    kept = Kept(RESTART)
    for number in range(2):
        kept.children[number].die("exited", by_signal=False)
        assert kept.supervisor.poll() is None
        kept.clock.advance(NS_PER_S)
        assert kept.supervisor.poll() is not None


@pytest.mark.parametrize("by_signal", [True, False])
def test_where_nothing_is_started_again_a_death_is_raised_once_it_could_be_explained(by_signal: bool) -> None:
    kept = Kept(RestartPolicy(restart=False))
    kept.children[0].die("gone", by_signal=by_signal)
    assert kept.supervisor.poll() is None
    kept.clock.advance(500 * MS)
    with pytest.raises(StageDied, match="the answer stage died: gone"):
        kept.supervisor.poll()
    assert len(kept.children) == 1


def test_silence_beyond_the_limit_is_a_death() -> None:
    kept = Kept(RESTART)
    kept.children[0].silent_s = 5.0
    assert kept.supervisor.poll() is None
    kept.children[0].silent_s = 5.2
    assert kept.supervisor.poll() == Restarted(process="answers", cause="silent for 5.2 s", count=1)
    assert kept.children[0].hung_s == 5.2


def test_silence_may_be_minded_alone() -> None:
    kept = Kept(RESTART)
    kept.children[0].silent_s = 5.2
    kept.supervisor.kill_if_hung()
    assert kept.children[0].died_by_signal
    assert len(kept.children) == 1


def test_a_crash_loop_is_given_up_with_the_last_cause() -> None:
    kept = Kept(RESTART)
    for number in range(2):
        kept.children[number].die("killed by SIGSEGV")
        restarted = kept.supervisor.poll()
        assert restarted is not None
        assert restarted.count == number + 1
        kept.clock.advance(20 * NS_PER_S)
    kept.children[2].die("exited with status 3 (no more memory)")
    with pytest.raises(StageDied) as raised:
        kept.supervisor.poll()
    assert str(raised.value) == (
        "the answer stage died: it died 3 times within a minute, the last time because exited with status 3 "
        "(no more memory); --debug shows what it printed, and pipeline.restart_limit allows more"
    )


def test_deaths_that_lie_far_apart_are_no_loop() -> None:
    kept = Kept(RESTART)
    for number in range(10):
        kept.children[number].die("killed")
        restarted = kept.supervisor.poll()
        assert restarted is not None
        assert restarted.count == number + 1
        kept.clock.advance(30 * NS_PER_S)


def test_a_limit_of_one_allows_no_restart() -> None:
    kept = Kept(RestartPolicy(restart=True, limit=1))
    kept.children[0].die("killed")
    with pytest.raises(StageDied, match="died once within a minute"):
        kept.supervisor.poll()


def test_stopping_stops_the_child_that_is_there_now() -> None:
    kept = Kept(RESTART)
    kept.children[0].die("killed")
    kept.supervisor.poll()
    kept.supervisor.stop()
    assert kept.children[1].stopped


def test_deaths_that_are_forgiven_make_no_loop() -> None:
    kept = Kept(RESTART)
    for number in range(10):
        kept.supervisor.reset_crash_count()
        kept.children[number].die("the camera is away")
        restarted = kept.supervisor.poll()
        assert restarted is not None
        assert restarted.count == number + 1
