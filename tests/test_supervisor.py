"""Stages that run, die, and do not end."""

from __future__ import annotations

import threading

import pytest

from stream import supervisor as supervisor_module
from stream.errors import StageDied
from stream.stages.base import Control
from stream.supervisor import Supervisor


class FakeStage:
    """Runs until it is let go."""

    def __init__(self, name: str, drops: dict[str, int] | None = None) -> None:
        self.name = name
        self.drops = drops or {}
        self.let_go = threading.Event()

    def run(self) -> None:
        assert self.let_go.wait(10)


class FakeChild:
    def __init__(self) -> None:
        self.stopped = False
        self.died: StageDied | None = None

    def death(self) -> StageDied | None:
        return self.died

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(supervisor_module.time, "monotonic", lambda: now[0])
    return now


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


def test_a_stage_that_does_not_end_is_named_and_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor_module, "JOIN_LIMIT_S", 0.01)
    supervisor, child = Supervisor(Control()), FakeChild()
    stages = [FakeStage("fine"), FakeStage("stuck")]
    supervisor.start(*stages)
    supervisor.adopt(child)  # type: ignore[arg-type]
    stages[0].let_go.set()
    assert not supervisor.stop()
    assert "still running 0.01 s after they were told to end: stuck" in caplog.text
    assert child.stopped
    stages[1].let_go.set()


def test_a_dead_child_is_reported_once_its_last_words_have_had_time(seconds: list[float]) -> None:
    control = Control()
    supervisor, child = Supervisor(control), FakeChild()
    supervisor.adopt(child)  # type: ignore[arg-type]
    supervisor.watch()
    child.died = StageDied("answer", "killed")
    supervisor.watch()
    seconds[0] += 0.4
    supervisor.watch()
    assert control.failure is None
    seconds[0] += 0.2
    supervisor.watch()
    assert control.failure is child.died


def test_a_child_that_ends_after_the_run_was_cancelled_has_not_died(seconds: list[float]) -> None:
    control = Control()
    supervisor, child = Supervisor(control), FakeChild()
    supervisor.adopt(child)  # type: ignore[arg-type]
    control.cancel()
    child.died = StageDied("answer", "killed")
    for _ in range(3):
        seconds[0] += 1
        supervisor.watch()
    assert control.failure is None
