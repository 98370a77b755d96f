"""What a display knows of its run."""

from __future__ import annotations

import os
from dataclasses import replace

from stream.clock import FakeClock
from stream.display.state import ViewModel
from stream.events import Notice, QueryChanged, Started
from tests.event_maker import answer, frame
from tests.fake_run import ScriptedRun

S = 1_000_000_000


def test_a_scene_holds_what_the_run_has_told() -> None:
    run, clock = ScriptedRun([]), FakeClock()
    state = ViewModel(run, clock)
    assert state.scene(state.figures()).waiting == "starting"
    state.add(Started(source="a", model="tiny", query="What\n?", backend="cpu"))
    state.add(Notice(code="loading", message="loading tiny"))
    scene = state.scene(state.figures())
    assert (scene.model, scene.query, scene.waiting) == ("tiny", "What ?", "loading tiny")
    state.add(frame(0, 0.0))
    state.add(answer(0.0, "hello"))
    state.note("mind the gap")
    scene = state.scene(state.figures())
    assert (scene.waiting, scene.info) == ("", run.source_info)
    assert [entry.text for entry in scene.entries] == ["hello", "mind the gap"]
    assert state.entries == scene.entries


def test_the_question_changes_only_where_it_was_not_refused() -> None:
    state = ViewModel(ScriptedRun([]), FakeClock())
    state.add(QueryChanged(query="Who?"))
    state.add(QueryChanged(query="What?", error="too long"))
    assert state.scene(state.figures()).query == "Who?"


def test_the_position_is_told_as_answers_are() -> None:
    run, clock = ScriptedRun([]), FakeClock()
    state = ViewModel(run, clock)
    assert state.loading
    assert state.position(state.figures()) == "0:00.0"
    run.statistics.add(frame(0, 12.0))
    state.add(frame(0, 12.0))
    assert not state.loading
    assert state.position(state.figures()) == "0:12.0 / 0:02.0"
    run.source_info = replace(run.source_info, duration_ns=None)
    state = ViewModel(run, clock)
    state.add(frame(0, 12.0))
    assert state.position(state.figures()) == "0:12.0"
    run.source_info = replace(run.source_info, live=True)
    state = ViewModel(run, clock)
    state.add(frame(0, 12.0))
    assert state.position(state.figures()).count(":") == 2, "the time of day"


def test_drops_are_always_fresh_and_memory_is_looked_up_once_a_second() -> None:
    run, clock = ScriptedRun([]), FakeClock()
    looks = []
    run.processes = lambda: looks.append(1) or {"frames": os.getpid()}  # type: ignore[method-assign, func-returns-value]
    state = ViewModel(run, clock)
    assert state.figures().memory_bytes["frames"] > 1_000_000
    run.dropped["answer.busy"] = 4
    clock.advance(S - 1)
    assert state.figures().dropped == {"answer.busy": 4}
    assert len(looks) == 1
    clock.advance(1)
    state.figures()
    assert len(looks) == 2
