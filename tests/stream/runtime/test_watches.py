"""Watches that are added to a run and removed from it while it goes on, with its stages and answer server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stream.control import FOUND, AddWatch, RemoveWatch
from stream.events import Answer, Event, Match, WatchesChanged, YesNoResult
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.run import Run
from tests.support.runs import RunRecorder, config, open_supervised, watch

DOOR = AddWatch("door", "is it bright?")


def in_threads() -> Run:
    run_config = config(single_process=True)
    return run_in_threads(run_config, model_loader="tests.support.answer_models:FakeAnswerModel")


@pytest.mark.parametrize("opened", [in_threads, open_supervised])
def test_a_watch_is_added_matches_and_is_removed(opened: Callable[[], Run]) -> None:
    run = opened()

    def act(recorder: RunRecorder, event: Event) -> None:
        if recorder.once("add", isinstance(event, Answer)):
            run.send(DOOR)
        if recorder.once("remove", isinstance(event, Match)):
            run.send(RemoveWatch("door"))
            run.send(RemoveWatch("nix"))
        if recorder.once("end", isinstance(event, WatchesChanged) and event.watch == "nix"):
            run.end(FOUND)

    recorder = watch(run, act)
    changes = [
        (change.watch, [question.name for question in change.watches], change.error)
        for change in recorder.of(WatchesChanged)
    ]
    assert changes == [
        ("door", ["door"], None),
        ("door", [], None),
        ("nix", [], "no watch is named 'nix'; there is none"),
    ]
    assert {look.watch for look in recorder.of(YesNoResult)} == {"door"}
    assert [(match.watch, match.question) for match in recorder.of(Match)] == [("door", "is it bright?")]
    assert not any(isinstance(event, YesNoResult) for event in recorder.since(WatchesChanged))


def test_a_frame_process_that_dies_leaves_the_watch_to_the_next() -> None:
    run = open_supervised()

    def act(recorder: RunRecorder, event: Event) -> None:
        if recorder.once("add", isinstance(event, Answer)):
            run.send(DOOR)
        if recorder.once("kill", isinstance(event, Match)):
            recorder.signal("frames")
        if recorder.once("end", bool(recorder.restarts()) and isinstance(event, YesNoResult)):
            run.end(FOUND)

    recorder = watch(run, act)
    assert [restart[0] for restart in recorder.restarts()] == ["frames"]
    assert recorder.of(YesNoResult)[-1].watch == "door"
    assert len(recorder.of(Match)) == 1, "it has had its match"
    assert any(isinstance(event, Answer) for event in recorder.since(Match)), (
        "the question of the run is still answered"
    )
