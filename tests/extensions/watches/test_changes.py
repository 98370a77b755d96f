"""Changes of watches while a run goes on: one at a time, between two requests."""

from __future__ import annotations

from functools import partial

import pytest

from stream.control import WATCH_CHANGES_MAX, AddWatch, RemoveWatch, WatchChange
from stream.events import Match, WatchesChanged, YesNoResult
from stream.extensions.watches.changes import CROWDED, LAST_WATCH, MOST_WATCHES, NO_WATCH_CHANGES, WatchChanges
from stream.untrusted import WATCHES_MAX
from tests.stream.answer.test_scheduler import Opener, ScheduledRun, watched
from tests.support.answer_client import FakeJournal


@pytest.fixture
def opened() -> Opener:
    return partial(ScheduledRun, askers=lambda questions: (WatchChanges(questions),))


def changes(run: ScheduledRun) -> list[tuple[str, list[str], str | None]]:
    return [
        (event.watch, [watch.name for watch in event.watches], event.error)
        for event in run.events
        if isinstance(event, WatchesChanged)
    ]


def looked(run: ScheduledRun) -> list[str]:
    return [event.watch for event in run.events if isinstance(event, YesNoResult)]


DOOR = AddWatch("door", "is the door open?")


def test_an_added_watch_is_checked_once_its_question_is_accepted_and_shares_the_allocation(opened: Opener) -> None:
    run = opened(lockstep=False).greet()
    run.show(0)
    run.go_on()
    assert run.others == [[]]
    run.control.send(DOOR)
    run.peer.yes = 0.99
    run.go_on()
    assert changes(run) == [("door", ["door"], None)]
    assert run.others == [[], ["is the door open?"]]
    run.show(1)
    run.go_on()
    assert looked(run) == ["door"]
    assert [event.watch for event in run.events if isinstance(event, Match)] == ["door"]
    assert run.models[-1][1].text == "what?", "the query of the run stays"


def test_a_removed_watch_is_no_longer_checked_and_its_name_may_be_used_again(opened: Opener) -> None:
    run = opened(watches=(watched(), watched("is it gone?", "gone"))).greet()
    run.show(0)
    run.control.send(RemoveWatch("there"))
    run.go_on()
    assert changes(run) == [("there", ["gone"], None)]
    assert run.others[-1] == ["is it gone?"]
    run.show(1, cut=True)
    assert looked(run) == ["there", "gone", "gone"]
    run.control.send(AddWatch("there", "is it back?"))
    run.go_on()
    run.show(2, cut=True)
    assert looked(run)[-2:] == ["gone", "there"]


def test_a_watch_waits_for_the_request_in_flight(opened: Opener) -> None:
    run = opened(lockstep=False).greet()
    run.peer.answers = False
    run.show(0)
    run.go_on()
    run.control.send(DOOR)
    run.go_on()
    assert changes(run) == []
    run.peer.answer(0)
    run.go_on()
    assert changes(run) == [("door", ["door"], None)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (RemoveWatch("nix"), "no watch is named 'nix'; there are: there"),
        (AddWatch("there", "is it?"), "a watch is named 'there' already; give another name"),
        (AddWatch("door", "is it?", threshold=2.0), "its settings are not valid"),
        (AddWatch("door", "is it?", hold_s=1e308), "its settings are not valid"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_in_one_line(opened: Opener, change: WatchChange, words: str) -> None:
    run = opened(watches=(watched(),)).greet()
    run.control.send(change)
    run.go_on()
    ((name, names, error),) = changes(run)
    assert (name, names) == (change.name, ["there"])
    assert error is not None
    assert error.startswith(words)
    assert "\n" not in error


def test_the_limits_of_watches_and_of_changes_that_wait(opened: Opener) -> None:
    run = opened(watches=tuple(watched(f"is it {place}?", f"w{place}") for place in range(WATCHES_MAX))).greet()
    run.control.send(DOOR)
    run.go_on()
    assert changes(run)[0][2] == MOST_WATCHES
    run = opened(lockstep=False).greet()
    run.peer.answers = False
    run.show(0)
    run.go_on()
    for place in range(WATCH_CHANGES_MAX + 1):
        run.control.send(AddWatch(f"w{place}", "is it?"))
    run.go_on()
    assert changes(run) == [(f"w{WATCH_CHANGES_MAX}", [], CROWDED)]


def test_a_question_that_the_server_or_the_model_refuses_leaves_the_run_as_it_was(opened: Opener) -> None:
    run = opened(source_is_drawn=True)
    run.peer.known_world = "drawn scenes"
    run.greet()
    run.peer.refusals[DOOR.question] = "the question is too long"
    run.control.send(DOOR)
    run.go_on()
    run.peer.refusals.clear()
    run.peer.unknown_words = ("door",)
    run.control.send(DOOR)
    run.go_on()
    assert [(names, error is None) for _, names, error in changes(run)] == [([], False)] * 2
    assert changes(run)[0][2] == "the question is too long"
    assert "door" in str(changes(run)[1][2])
    assert run.others == [[]]
    run.show(0)
    assert run.triggers() == ["start"]


def test_only_watches_keep_one_and_the_question_of_the_run_follows(opened: Opener) -> None:
    run = opened(watches=(watched(),), watches_only=True, query="is it there?").greet()
    run.control.send(RemoveWatch("there"))
    run.go_on()
    assert changes(run) == [("there", ["there"], LAST_WATCH)]
    run.control.send(AddWatch("gone", "is it gone?"))
    run.control.send(RemoveWatch("there"))
    run.go_on(4)
    assert changes(run)[1:] == [("gone", ["there", "gone"], None), ("there", ["gone"], None)]
    assert (run.models[-1][1].text, run.others[-1]) == ("is it gone?", [])


def test_a_run_that_is_continued_keeps_its_watches(opened: Opener) -> None:
    run = opened(journal=FakeJournal()).greet()
    run.control.send(DOOR)
    run.go_on()
    assert changes(run) == [("door", [], NO_WATCH_CHANGES)]


def test_another_server_is_given_the_present_watches(opened: Opener) -> None:
    run = opened(reconnect=True, lockstep=False, watches=(watched(), watched("is it gone?", "gone"))).greet()
    run.control.send(DOOR)
    run.control.send(RemoveWatch("gone"))
    run.go_on(4)
    run.scheduler.connection.give_up("test")
    run.go_on(4)
    assert run.peer.embeds()[-3:] == ["what?", "is it there?", "is the door open?"]
    run.show(0)
    run.go_on()
    assert looked(run) == ["there", "door"]


def test_an_added_watch_leaves_with_a_server_whose_model_cannot_evaluate_it(opened: Opener) -> None:
    run = opened(reconnect=True, lockstep=False).greet()
    run.control.send(DOOR)
    run.go_on()
    run.peer.known_world = "drawn scenes"
    run.scheduler.connection.give_up("test")
    run.go_on(4)
    assert [(names, error is None) for _, names, error in changes(run)] == [(["door"], True), ([], False)]


def test_a_watch_added_to_a_forced_run_is_forced_and_has_the_warning(opened: Opener) -> None:
    run = opened(source_is_drawn=False, watches=(watched(force=True),), watches_only=True, lockstep=False)
    run.peer.known_world = "cats"
    run.greet()
    run.control.send(DOOR)
    run.go_on()
    assert changes(run) == [("door", ["there", "door"], None)]
    run.show(0)
    run.go_on()
    looks = [event for event in run.events if isinstance(event, YesNoResult)]
    assert {look.watch: look.warning for look in looks} == dict.fromkeys(
        ("there", "door"), "means nothing: the model only knows cats"
    )
    run.scheduler.connection.give_up("test")
    run.go_on(4)
    assert len(changes(run)) == 1, "it stays with the next server"
