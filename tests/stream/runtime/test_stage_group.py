"""Stages that run, end, and do not end."""

from __future__ import annotations

import threading

import pytest

from stream.control import RunControl
from stream.runtime import frame_stages
from stream.runtime.frame_stages import StageGroup


class FakeStage:
    """Runs until it is released."""

    def __init__(self, name: str, drops: dict[str, int] | None = None) -> None:
        self.name = name
        self.drops = drops or {}
        self.let_go = threading.Event()

    def run(self) -> None:
        assert self.let_go.wait(10)


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


def test_a_stage_that_does_not_end_is_named_and_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(frame_stages, "JOIN_LIMIT_S", 0.01)
    group = StageGroup(RunControl())
    stages = [FakeStage("fine"), FakeStage("stuck")]
    group.start(*stages)
    stages[0].let_go.set()
    assert not group.stop()
    assert "still running 0.01 s after the request to end: stuck" in caplog.text
    stages[1].let_go.set()
