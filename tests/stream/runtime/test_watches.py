"""Watches that are added to a run and removed from it while it goes on, with its stages and answer server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stream.control import FOUND, WatchChange
from stream.events import Answer, Event, Match, WatchesChanged, YesNoResult
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.run import Run
from tests.support.runs import Seen, config, open_supervised, watch

DOOR = WatchChange("door", "is it bright?")


def in_threads() -> Run:
    given = config(single_process=True)
    return run_in_threads(given, model_loader="tests.support.answer_models:FakeAnswerModel")


@pytest.mark.parametrize("opened", [in_threads, open_supervised])
def test_a_watch_is_added_matches_and_is_removed(opened: Callable[[], Run]) -> None:
    run = opened()

    def act(seen: Seen, event: Event) -> None:
        if seen.once("add", isinstance(event, Answer)):
            run.change_watch(DOOR)
        if seen.once("remove", isinstance(event, Match)):
            run.change_watch(WatchChange("door"))
            run.change_watch(WatchChange("nix"))
        if seen.once("end", isinstance(event, WatchesChanged) and event.watch == "nix"):
            run.end(FOUND)

    seen = watch(run, act)
    changes = [(one.watch, [named.name for named in one.watches], one.error) for one in seen.of(WatchesChanged)]
    assert changes == [
        ("door", ["door"], None),
        ("door", [], None),
        ("nix", [], "no watch is named 'nix'; there is none"),
    ]
    assert {look.watch for look in seen.of(YesNoResult)} == {"door"}
    assert [(match.watch, match.question) for match in seen.of(Match)] == [("door", "is it bright?")]
    assert not any(isinstance(event, YesNoResult) for event in seen.since(WatchesChanged))


def test_a_frame_process_that_dies_leaves_the_watch_to_the_next() -> None:
    run = open_supervised()

    def act(seen: Seen, event: Event) -> None:
        if seen.once("add", isinstance(event, Answer)):
            run.change_watch(DOOR)
        if seen.once("kill", isinstance(event, Match)):
            seen.signal("frames")
        if seen.once("end", bool(seen.restarts()) and isinstance(event, YesNoResult)):
            run.end(FOUND)

    seen = watch(run, act)
    assert [restart[0] for restart in seen.restarts()] == ["frames"]
    assert seen.of(YesNoResult)[-1].watch == "door"
    assert len(seen.of(Match)) == 1, "it has had its match"
    assert any(isinstance(event, Answer) for event in seen.since(Match)), "the question of the run is still answered"
