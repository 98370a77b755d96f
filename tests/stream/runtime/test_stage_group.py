"""Stages and children that run, die, are started again, and do not end."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from arr_coc.types import NS_PER_S
from stream.control import RunControl
from stream.events import Restarted
from stream.runtime import pipeline as pipeline_module
from stream.runtime.child import RestartPolicy
from stream.runtime.pipeline import StageGroup
from tests.stream.runtime.test_child import Kept
from tests.support.clock import FakeClock


class FakeStage:
    """Runs until it is let go."""

    def __init__(self, name: str, drops: dict[str, int] | None = None) -> None:
        self.name = name
        self.drops = drops or {}
        self.let_go = threading.Event()

    def run(self) -> None:
        assert self.let_go.wait(10)


def grouped(rules: RestartPolicy) -> tuple[StageGroup, RunControl, Kept, FakeClock]:
    control, kept = RunControl(), Kept(rules)
    group = StageGroup(control)
    group.add_process("answers", kept.supervisor)
    return group, control, kept, kept.clock


def test_stages_are_started_stopped_and_their_drops_put_together() -> None:
    control = RunControl()
    group = StageGroup(control)
    stages = [FakeStage("one", {"one.replaced": 1}), FakeStage("two", {"two.replaced": 2})]
    group.start(*stages)
    assert group.is_alive("one")
    for stage in stages:
        stage.let_go.set()
    assert group.stop()
    assert control.cancelled
    assert not group.is_alive("one")
    assert group.drops == {"one.replaced": 1, "two.replaced": 2}


def test_its_processes_may_be_asked_for_while_another_one_is_added() -> None:
    group = StageGroup(RunControl())

    class Adding:
        @property
        def child(self) -> SimpleNamespace:
            group.add_process("another", Adding())  # type: ignore[arg-type]
            return SimpleNamespace(pid=1)

    group.add_process("answers", Adding())  # type: ignore[arg-type]
    assert group.processes == {"answers": 1}


def test_a_stage_that_does_not_end_is_named_and_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipeline_module, "JOIN_LIMIT_S", 0.01)
    group = StageGroup(RunControl())
    stages = [FakeStage("fine"), FakeStage("stuck")]
    group.start(*stages)
    stages[0].let_go.set()
    assert not group.stop()
    assert "still running 0.01 s after the request to end: stuck" in caplog.text
    stages[1].let_go.set()


def test_a_dead_child_fails_the_run_once_its_last_words_have_had_time() -> None:
    group, control, kept, clock = grouped(RestartPolicy())
    assert group.poll() == []
    kept.children[0].die("killed")
    group.poll()
    clock.advance(NS_PER_S * 4 // 10)
    group.poll()
    assert control.failure is None
    clock.advance(NS_PER_S * 2 // 10)
    assert group.poll() == []
    assert control.failure is kept.children[0].exit_error()


def test_a_dead_child_is_started_again_and_that_is_reported() -> None:
    group, control, kept, _ = grouped(RestartPolicy(restart=True))
    assert group.processes == {"answers": 0}
    kept.children[0].die("killed")
    assert group.poll() == [Restarted(process="answers", cause="killed", count=1)]
    assert group.processes == {"answers": 1}
    assert control.failure is None


def test_a_child_that_ends_after_the_run_was_cancelled_has_not_died() -> None:
    group, control, kept, clock = grouped(RestartPolicy(restart=True))
    control.cancel()
    kept.children[0].die("killed")
    for _ in range(3):
        clock.advance(NS_PER_S)
        assert group.poll() == []
    assert control.failure is None
    assert len(kept.children) == 1
