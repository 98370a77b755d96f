"""A display knows its run from events and statistics."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
from msgspec import structs

from stream.clock import DisplayClock
from stream.display.input import PendingQuestions
from stream.display.state import (
    ENTRIES_KEPT,
    FIGURES_NS,
    CameraSnapshot,
    CameraState,
    Transcript,
    TranscriptEntry,
)
from stream.events import AnswerDeltaEvent, Event, Notice, Outage, QueryChanged, Restarted, Started
from tests.support.clock import FakeClock
from tests.support.events import answer, frame, look, summary, turned
from tests.support.runs import ScriptedRun

S = 1_000_000_000


def state_of(run: ScriptedRun, clock: FakeClock | None = None, name: str = "") -> CameraState:
    state = CameraState(clock or FakeClock(), name)
    state.attach(run, PendingQuestions(run.send))
    return state


def test_a_snapshot_holds_what_the_run_has_reported() -> None:
    run = ScriptedRun([])
    state = state_of(run)
    assert state.snapshot().state == "starting"
    state.add(Started(source="a", model="tiny", query="What\n?", backend="cpu"))
    state.add(Notice(code="loading", message="loading tiny"))
    view = state.snapshot()
    assert (view.model, view.query, view.state) == ("tiny", "What ?", "loading tiny")
    state.add(frame(0, 0.0))
    state.add(answer(0.0, "hello"))
    state.add_message("mind the gap")
    view = state.snapshot()
    assert (view.state, view.info) == ("", run.source_info)
    assert [entry.text for entry in view.entries] == ["hello", "mind the gap"]
    assert state.entries == view.entries
    state.add(QueryChanged(query="Who?"))
    state.add(QueryChanged(query="What?", error="too long"))
    assert state.snapshot().query == "Who?", "the other one was refused"


def test_the_problem_of_a_camera_is_its_state_until_its_run_begins() -> None:
    run, clock = ScriptedRun([]), FakeClock()
    state = CameraState(clock, "door")
    assert state.snapshot() == CameraSnapshot("door", "opening")
    state.fail("no route", is_final=False)
    assert state.snapshot() == CameraSnapshot("door", "no route", has_problem=True)
    state.attach(run, PendingQuestions(run.send))
    assert (state.snapshot().state, state.snapshot().has_problem) == ("starting", False)
    state.add(frame(0, 0.0))
    run.statistics.add(Outage(frame_index=0, pts_s=0.0, reason="no route"))
    clock.advance(FIGURES_NS)
    assert state.snapshot().state.startswith("source lost for ")
    assert state.snapshot().has_problem
    state.add(QueryChanged(query="Who?"))
    assert state.entries == (), "a camera with a name has no messages between its answers"
    state.add(summary())
    assert (state.snapshot().state, state.snapshot().has_problem) == ("finished", False)


def test_the_position_is_reported_as_answers_are() -> None:
    run = ScriptedRun([])
    state = state_of(run)
    assert state.loading
    assert state.position(state.statistics()) == "0:00.0"
    run.statistics.add(frame(0, 12.0))
    state.add(frame(0, 12.0))
    assert not state.loading
    assert state.position(state.statistics()) == "0:12.0 / 0:02.0"
    run.source_info = replace(run.source_info, duration_ns=None)
    state = state_of(run)
    state.add(frame(0, 12.0))
    assert state.position(state.statistics()) == "0:12.0"
    run.source_info = replace(run.source_info, live=True)
    state = state_of(run)
    state.add(frame(0, 12.0))
    assert state.position(state.statistics()).count(":") == 2, "the time of day"


def test_drops_are_always_fresh_and_memory_is_looked_up_once_a_second() -> None:
    run, clock = ScriptedRun([]), FakeClock()
    looks = []
    run.processes = lambda: looks.append(1) or {"frames": os.getpid()}  # type: ignore[method-assign, func-returns-value]
    state = state_of(run, clock)
    assert state.statistics().memory_bytes["frames"] > 1_000_000
    run.dropped["answer.busy"] = 4
    clock.advance(S - 1)
    assert state.statistics().dropped == {"answer.busy": 4}
    assert len(looks) == 1
    clock.advance(1)
    state.statistics()
    assert len(looks) == 2


@pytest.fixture
def transcript() -> Transcript:
    return Transcript(DisplayClock(live=False))


def piece(text: str, number: int = 0) -> AnswerDeltaEvent:
    return AnswerDeltaEvent(answer=number, text=text, pts_s=2.0)


def test_an_answer_grows_and_is_then_an_entry(transcript: Transcript) -> None:
    assert transcript.partial is None
    assert transcript.add(answer(1.0, " \n")) is None
    assert transcript.entries == (), "an empty answer is none"
    transcript.add(AnswerDeltaEvent(answer=0, text="a"))
    assert transcript.partial == TranscriptEntry("", "a"), "text without a time has none"
    assert transcript.add(piece("a red ", 1)) is None
    transcript.add(piece("circle\x1b", 1))
    assert transcript.partial == TranscriptEntry("0:02.0", "a red circle")
    assert transcript.add(answer(2.0, " a red circle. ")) == TranscriptEntry("0:02.0", "a red circle.")
    assert transcript.partial is None
    assert transcript.entries == (TranscriptEntry("0:02.0", "a red circle."),)


def test_a_turn_is_an_entry_and_a_look_is_none(transcript: Transcript) -> None:
    assert transcript.add(look(2.0)) is None
    assert transcript.add(turned(2.0)) == TranscriptEntry("0:02.0", "yes (97 %): is it here?")
    assert len(transcript.entries) == 1


@pytest.mark.parametrize("event", [piece("b", 1), Restarted(process="answers", cause="killed", count=1)])
def test_an_answer_that_was_broken_off_is_forgotten(transcript: Transcript, event: Event) -> None:
    transcript.add(piece("a"))
    transcript.add(event)
    assert transcript.partial is None or transcript.partial.text == "b"


def test_an_answer_that_is_the_same_extends_the_one_before(transcript: Transcript) -> None:
    for at_s in (1.0, 2.0, 3.0):
        assert transcript.add(answer(at_s, "a")) == TranscriptEntry(f"0:0{at_s:.1f}", "a"), "shown as any other"
    assert transcript.entries == (TranscriptEntry("0:01.0", "a", count=3, until="0:03.0"),)
    assert transcript.entries[0].display_text == "a (×3, to 0:03.0)"
    transcript.add(answer(4.0, "b"))
    transcript.add(answer(5.0, "a"))
    assert [entry.display_text for entry in transcript.entries] == ["a (×3, to 0:03.0)", "b", "a"]


@pytest.mark.parametrize("event", [QueryChanged(query="Who?"), turned(1.5)])
def test_after_something_else_the_same_answer_is_reported_again(transcript: Transcript, event: Event) -> None:
    transcript.add(answer(1.0, "a"))
    transcript.add(event)
    transcript.add(answer(2.0, "a"))
    transcript.add_message("a")
    transcript.add(answer(3.0, "a"))
    assert [entry.count for entry in transcript.entries] == [1, 1, 1, 1, 1]


def test_a_partial_answer_that_repeats_the_last_one_is_not_shown(transcript: Transcript) -> None:
    transcript.add(answer(1.0, "a red circle"))
    transcript.add(piece("a red"))
    assert transcript.partial is None
    transcript.add(piece(" square"))
    assert transcript.partial == TranscriptEntry("0:02.0", "a red square")


def test_messages_stand_between_answers(transcript: Transcript) -> None:
    transcript.add(answer(1.0, "a"))
    assert transcript.add(QueryChanged(query="Who\n?")) == TranscriptEntry("", "asked: Who ?", is_message=True)
    transcript.add_message("mind the gap")
    assert [entry.is_message for entry in transcript.entries] == [False, True, True]


def test_only_the_last_entries_are_kept(transcript: Transcript) -> None:
    for number in range(ENTRIES_KEPT + 9):
        transcript.add(answer(number, str(number)))
    assert len(transcript.entries) == ENTRIES_KEPT
    assert transcript.entries[-1].text == str(ENTRIES_KEPT + 8)


def test_an_answer_to_the_question_before_stands_above_the_new_one(transcript: Transcript) -> None:
    old, new = answer(1.0, "a cat"), structs.replace(answer(3.0, "a red one"), query="What colour?")
    for event in (QueryChanged(query="What colour?"), old, new, structs.replace(new, pts_s=4.0, text="blue")):
        transcript.add(event)
    assert [entry.text for entry in transcript.entries] == ["a cat", "asked: What colour?", "a red one", "blue"]


def test_the_date_stands_above_an_answer_to_the_question_before() -> None:
    transcript = Transcript(DisplayClock(live=True, wall_s=lambda: 0.0))
    transcript.clock.sync(0.0, 0.0)
    transcript.add(QueryChanged(query="What colour?"))
    transcript.add(answer(1.0, "a cat"))
    day, old, question = (entry.text for entry in transcript.entries)
    assert "1970-01-01" in day or "1969-12-31" in day
    assert (old, question) == ("a cat", "asked: What colour?")


def test_a_day_begins_with_its_date() -> None:
    noon = time.mktime((2026, 1, 2, 12, 0, 0, 0, 0, -1))
    transcript = Transcript(DisplayClock(live=True, wall_s=lambda: noon))
    transcript.add(frame(0, 0.0, capture_ns=0, ready_ns=0))
    for at_s, words in ((0.0, "a cat"), (1.0, "a dog"), (86_400.0, "a dog"), (86_401.0, "a cow")):
        transcript.add(answer(at_s, words))
    assert [(entry.at, entry.text) for entry in transcript.entries] == [
        ("", "Friday, 2026-01-02"),
        ("12:00:00", "a cat"),
        ("12:00:01", "a dog"),
        ("", "Saturday, 2026-01-03"),
        ("12:00:00", "a dog"),
        ("12:00:01", "a cow"),
    ]
    dated = DisplayClock(live=True, wall_s=lambda: noon, dates=True)
    dated.sync(0.0, 0.0)
    assert (dated.text(1.0), dated.day(1.0)) == ("2026-01-02 12:00:01", "")


def test_a_live_source_is_reported_by_the_time_of_day() -> None:
    noon = time.mktime((2026, 1, 2, 12, 0, 0, 0, 0, -1))
    times = DisplayClock(live=True, wall_s=lambda: noon + 0.5)
    assert times.text(7.0) == "0:07.0"
    times.sync(7.0, 0.5)
    assert times.text(7.0) == "12:00:00"
    assert times.text(3.0) == "11:59:56"
