"""Stages and children that run, die, are started again, and do not end."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from arr_coc.types import NS_PER_S
from stream.clock import FakeClock
from stream.control import Control
from stream.events import Restarted
from stream.runtime import pipeline as supervisor_module
from stream.runtime.child import RestartRules
from stream.runtime.pipeline import Supervisor
from tests.test_keeper import Kept


class FakeStage:
    """Runs until it is let go."""

    def __init__(self, name: str, drops: dict[str, int] | None = None) -> None:
        self.name = name
        self.drops = drops or {}
        self.let_go = threading.Event()

    def run(self) -> None:
        assert self.let_go.wait(10)


def supervised(rules: RestartRules) -> tuple[Supervisor, Control, Kept, FakeClock]:
    control, kept = Control(), Kept(rules)
    supervisor = Supervisor(control)
    supervisor.adopt("answers", kept.keeper)
    return supervisor, control, kept, kept.clock


def test_stages_are_started_stopped_and_their_drops_put_together() -> None:
    control = Control()
    supervisor = Supervisor(control)
    stages = [FakeStage("one", {"one.replaced": 1}), FakeStage("two", {"two.replaced": 2})]
    supervisor.start(*stages)
    assert supervisor.alive("one")
    for stage in stages:
        stage.let_go.set()
    assert supervisor.stop()
    assert control.cancelled
    assert not supervisor.alive("one")
    assert supervisor.drops == {"one.replaced": 1, "two.replaced": 2}


def test_its_processes_may_be_asked_for_while_another_one_is_added() -> None:
    supervisor = Supervisor(Control())

    class Adding:
        @property
        def child(self) -> SimpleNamespace:
            supervisor.adopt("another", Adding())  # type: ignore[arg-type]
            return SimpleNamespace(pid=1)

    supervisor.adopt("answers", Adding())  # type: ignore[arg-type]
    assert supervisor.processes == {"answers": 1}


def test_a_stage_that_does_not_end_is_named_and_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor_module, "JOIN_LIMIT_S", 0.01)
    supervisor, _, kept, _ = supervised(RestartRules())
    stages = [FakeStage("fine"), FakeStage("stuck")]
    supervisor.start(*stages)
    stages[0].let_go.set()
    assert not supervisor.stop()
    assert "still running 0.01 s after they were told to end: stuck" in caplog.text
    assert kept.children[0].stopped
    stages[1].let_go.set()


def test_a_dead_child_fails_the_run_once_its_last_words_have_had_time() -> None:
    supervisor, control, kept, clock = supervised(RestartRules())
    assert supervisor.watch() == []
    kept.children[0].die("killed")
    supervisor.watch()
    clock.advance(NS_PER_S * 4 // 10)
    supervisor.watch()
    assert control.failure is None
    clock.advance(NS_PER_S * 2 // 10)
    assert supervisor.watch() == []
    assert control.failure is kept.children[0].death()


def test_a_dead_child_is_started_again_and_that_is_told() -> None:
    supervisor, control, kept, _ = supervised(RestartRules(restart=True))
    assert supervisor.processes == {"answers": 0}
    kept.children[0].die("killed")
    assert supervisor.watch() == [Restarted(process="answers", cause="killed", count=1)]
    assert supervisor.processes == {"answers": 1}
    assert control.failure is None


def test_a_child_that_ends_after_the_run_was_cancelled_has_not_died() -> None:
    supervisor, control, kept, clock = supervised(RestartRules(restart=True))
    control.cancel()
    kept.children[0].die("killed")
    for _ in range(3):
        clock.advance(NS_PER_S)
        assert supervisor.watch() == []
    assert control.failure is None
    assert len(kept.children) == 1
