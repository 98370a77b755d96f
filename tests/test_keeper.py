"""A child under watch: started again, waited for, and given up, all with children that are none."""

from __future__ import annotations

import pytest

from arr_coc.types import NS_PER_S
from stream.clock import FakeClock
from stream.errors import StageDied
from stream.events import Restarted
from stream.runtime.child import Keeper, RestartRules

MS = 1_000_000


class FakeChild:
    """Lives until it is made to die."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.killed = self.stopped = False
        self.silent_s = 0.0
        self.hung_s: float | None = None
        self._death: StageDied | None = None

    def die(self, cause: str, *, by_signal: bool = True) -> None:
        self._death, self.killed = StageDied("answer", cause), by_signal

    def silence_s(self) -> float:
        return self.silent_s

    def kill(self, hung_s: float | None = None) -> None:
        self.hung_s = hung_s
        self.die(f"silent for {hung_s} s")

    def death(self) -> StageDied | None:
        return self._death

    def stop(self) -> None:
        self.stopped = True


class Kept:
    """A keeper, its clock, and every child that it has started."""

    def __init__(self, rules: RestartRules) -> None:
        self.clock = FakeClock()
        self.children: list[FakeChild] = []
        self.keeper = Keeper("answers", self._start, rules, self.clock)  # type: ignore[arg-type]

    def _start(self) -> FakeChild:
        self.children.append(FakeChild(len(self.children)))
        return self.children[-1]


RESTART = RestartRules(restart=True, limit=3, heartbeat_s=5)


def test_while_it_lives_nothing_happens() -> None:
    kept = Kept(RESTART)
    assert kept.keeper.watch() is None
    assert len(kept.children) == 1


def test_a_death_by_a_signal_has_no_last_words_and_is_mended_at_once() -> None:
    kept = Kept(RESTART)
    kept.children[0].die("killed by SIGKILL")
    assert kept.keeper.watch() == Restarted(process="answers", cause="killed by SIGKILL", count=1)
    assert kept.children[0].stopped
    assert kept.keeper.child.pid == 1
    assert kept.keeper.watch() is None


def test_one_that_exited_may_still_be_heard() -> None:
    kept = Kept(RESTART)
    kept.children[0].die("exited with status 1", by_signal=False)
    assert kept.keeper.watch() is None
    kept.clock.advance(499 * MS)
    assert kept.keeper.watch() is None
    kept.clock.advance(MS)
    assert kept.keeper.watch() == Restarted(process="answers", cause="exited with status 1", count=1)


def test_each_death_has_last_words_of_its_own() -> None:
    kept = Kept(RESTART)
    for number in range(2):
        kept.children[number].die("exited", by_signal=False)
        assert kept.keeper.watch() is None
        kept.clock.advance(NS_PER_S)
        assert kept.keeper.watch() is not None


@pytest.mark.parametrize("by_signal", [True, False])
def test_where_nothing_is_started_again_a_death_is_raised_once_it_could_be_explained(by_signal: bool) -> None:
    kept = Kept(RestartRules(restart=False))
    kept.children[0].die("gone", by_signal=by_signal)
    assert kept.keeper.watch() is None
    kept.clock.advance(500 * MS)
    with pytest.raises(StageDied, match="the answer stage died: gone"):
        kept.keeper.watch()
    assert len(kept.children) == 1


def test_silence_beyond_the_limit_is_a_death() -> None:
    kept = Kept(RESTART)
    kept.children[0].silent_s = 5.0
    assert kept.keeper.watch() is None
    kept.children[0].silent_s = 5.2
    assert kept.keeper.watch() == Restarted(process="answers", cause="silent for 5.2 s", count=1)
    assert kept.children[0].hung_s == 5.2


def test_silence_may_be_minded_alone() -> None:
    kept = Kept(RESTART)
    kept.children[0].silent_s = 5.2
    kept.keeper.mind_silence()
    assert kept.children[0].killed
    assert len(kept.children) == 1


def test_a_crash_loop_is_given_up_with_the_last_cause() -> None:
    kept = Kept(RESTART)
    for number in range(2):
        kept.children[number].die("killed by SIGSEGV")
        restarted = kept.keeper.watch()
        assert restarted is not None
        assert restarted.count == number + 1
        kept.clock.advance(20 * NS_PER_S)
    kept.children[2].die("exited with status 3 (no more memory)")
    with pytest.raises(StageDied) as raised:
        kept.keeper.watch()
    assert str(raised.value) == (
        "the answer stage died: it died 3 times within a minute, the last time because exited with status 3 "
        "(no more memory); --debug shows what it printed, and pipeline.restart_limit allows more"
    )


def test_deaths_that_lie_far_apart_are_no_loop() -> None:
    kept = Kept(RESTART)
    for number in range(10):
        kept.children[number].die("killed")
        restarted = kept.keeper.watch()
        assert restarted is not None
        assert restarted.count == number + 1
        kept.clock.advance(30 * NS_PER_S)


def test_a_limit_of_one_allows_no_restart() -> None:
    kept = Kept(RestartRules(restart=True, limit=1))
    kept.children[0].die("killed")
    with pytest.raises(StageDied, match="died once within a minute"):
        kept.keeper.watch()


def test_stopping_stops_the_child_that_is_there_now() -> None:
    kept = Kept(RESTART)
    kept.children[0].die("killed")
    kept.keeper.watch()
    kept.keeper.stop()
    assert kept.children[1].stopped


def test_deaths_that_are_forgiven_make_no_loop() -> None:
    kept = Kept(RESTART)
    for number in range(10):
        kept.keeper.forgive()
        kept.children[number].die("the camera is away")
        restarted = kept.keeper.watch()
        assert restarted is not None
        assert restarted.count == number + 1
