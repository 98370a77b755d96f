"""Frame workers, one after another, as one run: the configuration of each, and the events of all."""

from __future__ import annotations

from dataclasses import replace as replaced
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec.structs import asdict, replace

from arr_coc.types import NS_PER_S
from stream.answer.triggers import WatchState, WatchStates
from stream.config import CaptureConfig, Config, WatchConfig
from stream.control import AddWatch, Ask, AskAside, RemoveWatch
from stream.events import (
    STORE_LOST,
    Answer,
    AnswerCancelled,
    AnswerDeltaEvent,
    AnyEvent,
    Cut,
    Event,
    Explanation,
    FrameReady,
    Notice,
    Outage,
    PictureChanged,
    QueryChanged,
    SegmentWritten,
    StandingQuestion,
    Summary,
    WatchesChanged,
)
from stream.runtime.run import EventRebaser, RunContinuity
from stream.runtime.worker_messages import AnyCommand, SourceOpened
from stream.transport.pool import ServerAddress, SetServers
from stream.transport.security import new_curves
from tests.support.clock import FakeClock
from tests.support.events import answer, frame, look, match, segment, turned
from tests.support.runs import WATCHED_INFO


def continuity(*, live: bool = True, **capture: Any) -> RunContinuity:
    """With a first frame process that has opened its source."""
    config = Config(source="a.mp4", capture=CaptureConfig(**capture))
    run_continuity = RunContinuity(config, FakeClock())
    assert run_continuity.next_config() == config, "the first process is given the run as it is"
    run_continuity.note_source(SourceOpened(replaced(WATCHED_INFO, live=live), "gl"))
    return run_continuity


@pytest.mark.parametrize("live", [True, False])
def test_the_next_one_reads_what_the_one_before_it_left(live: bool) -> None:
    run = continuity(live=live, max_frames=100)
    run.rebase(frame(39, 2.0))
    rest = run.next_config().capture
    assert run.frames_before == 40
    assert rest.max_frames == 60
    assert (rest.start_s == 0) is live
    run.rebase(frame(59, 3.0))
    assert run.next_config().capture.max_frames == 1


def test_frames_and_answers_are_counted_on() -> None:
    run = continuity()
    run.rebase(frame(39, 2.0))
    assert run.rebase(answer(2.0, "a", frame_index=39)) == answer(2.0, "a", frame_index=39)
    run.next_config()
    rebased = run.rebase(answer(0.0, "b", frame_index=3))
    assert (rebased.answer, rebased.frame_index) == (1, 43)  # type: ignore[union-attr]


def test_notices_that_every_frame_process_repeats_are_reported_once() -> None:
    run = continuity()
    loading, world, repaired = (Notice(code=code, message="") for code in ("loading", "model-world", "pts-repaired"))
    rebased = [run.rebase(event) for event in (loading, world, repaired, loading, world, repaired)]
    assert rebased == [None, world, repaired, None, None, repaired]


def test_drops_of_all_of_them_add_up() -> None:
    run = continuity()
    run.note_drops({"capture.replaced": 2})
    run.note_drops({"capture.replaced": 3})
    assert run.drops() == {"capture.replaced": 3}
    run.next_config()
    assert run.drops() == {"capture.replaced": 3}
    run.note_drops({"capture.replaced": 1, "texture.replaced": 4})
    assert run.drops() == {"capture.replaced": 4, "texture.replaced": 4}


def test_a_question_that_was_taken_is_the_next_ones_and_one_that_was_not_is_not() -> None:
    run = continuity()
    run.note_command(Ask("who?"))
    assert run.next_config().answer.query != "who?"
    assert run.open_commands == [Ask("who?")]
    run.rebase(QueryChanged(query="who?"))
    assert run.open_commands == []
    assert run.next_config().answer.query == "who?"
    run.note_command(Ask("refused?"))
    run.rebase(QueryChanged(query="refused?", error="too long"))
    assert run.open_commands == []
    assert run.next_config().answer.query == "who?"


def test_commands_that_are_open_go_to_the_next_worker_but_for_side_questions() -> None:
    run = continuity()
    servers = SetServers((ServerAddress("tcp://10.0.0.1:1", new_curves()[1]),))
    for command in (Ask("where?"), SetServers(()), AskAside(1, "what?"), Ask("who?"), servers):
        run.note_command(command)
    assert run.open_commands == [Ask("who?"), servers]
    lines = [msgspec.json.encode(command) for command in run.open_commands]
    assert [msgspec.json.decode(line, type=AnyCommand) for line in lines] == run.open_commands


def test_the_answer_that_holds_is_known_from_looks() -> None:
    run = continuity()
    assert run.watches.states == WatchStates()
    run.rebase(look(1.0, holds="yes"))
    run.rebase(look(1.0, holds=None))
    run.rebase(look(1.0, holds="no", watch="gone"))
    states = run.watches.states.by_name
    assert (states["here"].verdict, states["here"].matched, states["gone"].verdict) == (True, False, False)
    since_ns = states["here"].yes_since_ns
    run.rebase(match(1.0, 7))
    run.rebase(look(2.0, holds="yes"))
    state = run.watches.states.by_name["here"]
    assert (state.matched, state.yes_since_ns, state.last_match_ns) == (True, since_ns, since_ns)
    assert run.watches.states.matches == 7
    run.rebase(look(1.0, holds="no"))
    state = run.watches.states.by_name["here"]
    assert state == WatchState(False, None, False, since_ns)
    line = msgspec.json.encode(run.watches.states)
    assert msgspec.json.decode(line, type=WatchStates) == run.watches.states


@pytest.mark.parametrize(
    "begins_shot", [Cut(2, 2.0, 0.5), PictureChanged(2, 2.0, "format", 64, 64), Outage(2, 2.0, "gone")]
)
def test_the_next_one_counts_no_hold_of_an_earlier_shot(begins_shot: Event) -> None:
    clock = FakeClock()
    run = RunContinuity(Config(source="a.mp4"), clock)
    run.rebase(look(1.0, holds="yes"))
    clock.advance(NS_PER_S)
    run.rebase(begins_shot)
    assert run.watches.states.by_name["here"] == WatchState(verdict=True)
    run.rebase(look(3.0, holds="yes"))
    assert run.watches.states.by_name["here"] == WatchState(verdict=True, yes_since_ns=NS_PER_S)


def test_a_verdict_that_was_reported_is_not_again_and_each_watch_has_its_own() -> None:
    run = continuity()
    assert run.rebase(turned(1.0)) is not None
    assert run.rebase(turned(2.0, watch="gone")) is not None
    assert run.rebase(turned(3.0)) is None
    assert run.rebase(turned(4.0, to="no")) is not None


def changed(name: str, *names: str, error: str | None = None) -> WatchesChanged:
    present = tuple(StandingQuestion(present_name, f"is it {present_name}?") for present_name in names)
    return WatchesChanged(watch=name, watches=list(present), error=error)


def test_the_next_one_has_the_watches_of_now_and_the_changes_that_wait() -> None:
    config = Config(source="a.mp4", watch=(WatchConfig(name="here", question="is it here?"),))
    run = RunContinuity(config, FakeClock())
    assert run.next_config() == config
    new = AddWatch("door", "is it door?", threshold=0.8, hold_s=2.0)
    for command in (new, AddWatch("car", "is it car?"), RemoveWatch("here")):
        run.note_command(command)
    run.rebase(changed("door", "here", "door"))
    run.rebase(changed("car", "here", "door", error="too long"))
    assert run.open_commands == [RemoveWatch("here")]
    assert [(watch.name, watch.threshold, watch.hold_s) for watch in run.next_config().watch] == [
        ("here", 0.6, 0.0),
        ("door", 0.8, 2.0),
    ]
    run.rebase(changed("here", "door"))
    following = run.next_config()
    assert ([watch.name for watch in following.watch], following.watches_only) == (["door"], True)
    assert run.open_commands == []


def test_a_run_with_a_question_keeps_it_beside_its_first_watch() -> None:
    run = continuity()
    run.note_command(AddWatch("door", "is it door?"))
    run.rebase(changed("door", "door"))
    assert not run.next_config().watches_only


def test_a_run_that_shows_only_zones_goes_on_to_show_only_these() -> None:
    watch = WatchConfig(name="here", question="is it here?", zone="porch")
    run = RunContinuity(Config(source="a.mp4", watch=(watch,)), FakeClock())
    run.note_command(AddWatch("door", "is it door?"))
    run.rebase(changed("door", "here", "door"))
    assert [watch.zone for watch in run.next_config().watch] == ["porch", "porch"]


def test_the_state_of_a_watch_is_removed_with_it() -> None:
    run = continuity()
    run.rebase(look(1.0, holds="yes"))
    assert run.rebase(turned(1.0)) is not None
    run.rebase(changed("here"))
    assert run.watches.states.by_name == {}
    assert run.rebase(turned(2.0)) is not None, "another watch of that name"


def test_the_store_that_runs_is_known_also_once_it_gave_up() -> None:
    run = continuity()
    assert run.backend == "gl"
    run.rebase(Notice(code=STORE_LOST, message="gone"))
    assert run.backend == "cpu"


def captured(index: int, pts_s: float, at_s: float) -> FrameReady:
    """A frame of media time `pts_s`, captured at `at_s`."""
    return replace(frame(index, pts_s), capture_ns=round(at_s * NS_PER_S))


def numbers(event: Event) -> tuple[int, float]:
    assert isinstance(event, (FrameReady, Answer, Cut, Outage))
    return event.frame_index, event.pts_s


def test_the_first_process_counts_for_itself() -> None:
    numbering = EventRebaser()
    assert numbering.next_epoch(0) is None
    for event in (captured(0, 0.0, 100), captured(3, 0.12, 100.12), Notice(code="a", message="b")):
        assert numbering.apply(event) == event


def test_frames_go_on_and_live_time_by_the_time_that_was_lost() -> None:
    numbering = EventRebaser(live=True)
    numbering.apply(captured(7, 10.0, 110.0))
    numbering.next_epoch(round(110.5 * NS_PER_S))
    assert numbers(numbering.apply(captured(0, 0.0, 111.25))) == (8, 11.25)
    assert numbers(numbering.apply(captured(1, 0.5, 111.75))) == (9, 11.75)
    assert numbers(numbering.apply(Cut(frame_index=2, pts_s=0.75, score=0.5))) == (10, 12.0)
    assert numbers(numbering.apply(Outage(frame_index=2, pts_s=0.75, reason="lost"))) == (10, 12.0)
    segment_event = numbering.apply(segment(0.25, track_s=0.25))
    assert isinstance(segment_event, SegmentWritten)
    assert (segment_event.start_s, segment_event.track_s) == (11.5, 0.25)


def test_a_file_keeps_its_own_times_and_is_given_the_place_to_go_on() -> None:
    numbering = EventRebaser(live=False)
    numbering.apply(captured(50, 2.0, 102.0))
    assert numbering.next_epoch(round(102.75 * NS_PER_S)) == 2.75
    assert numbers(numbering.apply(captured(0, 2.8, 102.8))) == (51, 2.8)


def test_a_clock_that_stands_still_takes_nothing_away() -> None:
    numbering = EventRebaser(live=False)
    numbering.apply(captured(0, 2.0, 102.0))
    assert numbering.next_epoch(round(101.0 * NS_PER_S)) == 2.0


def test_answers_go_on_also_after_one_that_was_never_finished() -> None:
    numbering = EventRebaser(live=True)
    numbering.apply(captured(0, 0.0, 100))
    numbering.apply(answer(0.0, "one"))
    numbering.apply(AnswerDeltaEvent(answer=1, text="half of", pts_s=0.5))
    numbering.next_epoch(0)
    numbering.apply(captured(0, 0.0, 102))
    text = numbering.apply(AnswerDeltaEvent(answer=0, text="two", pts_s=0.0))
    assert text == AnswerDeltaEvent(answer=2, text="two", pts_s=2.0)
    rebased = numbering.apply(answer(0.0, "two"))
    assert isinstance(rebased, Answer)
    assert (rebased.answer, rebased.frame_index) == (2, 1)
    assert (rebased.pts_s, rebased.start_s, rebased.end_s) == (2.0, 2.0, 2.0)


def test_a_cancelled_answer_has_a_number_and_both_of_its_times_go_on() -> None:
    numbering = EventRebaser(live=True)
    numbering.apply(captured(0, 0.0, 100))
    numbering.next_epoch(0)
    numbering.apply(captured(0, 0.0, 102))
    stale = AnswerCancelled(
        answer=0, frame_index=0, pts_s=0.0, trigger="start", text="", by="cut", by_frame_index=3, by_pts_s=0.5
    )
    rebased = numbering.apply(stale)
    assert rebased == replace(stale, frame_index=1, pts_s=2.0, by_frame_index=4, by_pts_s=2.5)
    numbering.next_epoch(0)
    numbering.apply(captured(0, 0.0, 104))
    following = numbering.apply(AnswerDeltaEvent(answer=0, text="two"))
    assert following == AnswerDeltaEvent(answer=1, text="two"), "text without a time gets none"


def test_a_process_that_dies_before_its_first_frame_changes_nothing() -> None:
    numbering = EventRebaser(live=True)
    assert numbering.next_epoch(0) is None
    numbering.apply(captured(0, 5.0, 105))
    for _ in range(2):
        numbering.next_epoch(0)
    assert numbers(numbering.apply(captured(0, 0.0, 107))) == (1, 7.0)
    assert numbers(numbering.apply(captured(1, 0.5, 107.5))) == (2, 7.5)
    numbering.next_epoch(0)
    assert numbers(numbering.apply(captured(0, 0.0, 109))) == (3, 9.0), "a third one goes on from the second"


VALUES: dict[Any, Any] = {int: 1, float: 0.5, str: "a", bytes: b"a", bool: True}

DURATIONS = {"duration_s", "lasted_s", "track_s"}
"""Times of events that do not count from the beginning of a frame worker."""


def example(kind: Any) -> Any:
    """A value of a field's type; of several types, of the first one that is not None."""
    if kind in VALUES:
        return VALUES[kind]
    if isinstance(kind, type) and hasattr(kind, "__annotations__"):
        hints = get_type_hints(kind)
        return kind(**{name: example(hints[name]) for name in hints})
    arguments = get_args(kind)
    if get_origin(kind) is list:
        return [example(arguments[0])]
    if get_origin(kind) is dict:
        return {}
    return example(arguments[0])


@pytest.mark.parametrize("kind", get_args(AnyEvent), ids=lambda kind: kind.__name__)
def test_every_event_goes_on_from_the_process_before(kind: type[Event]) -> None:
    numbering = EventRebaser(live=True)
    numbering.apply(captured(7, 10.0, 110.0))
    numbering.apply(AnswerDeltaEvent(answer=3, text="one"))
    numbering.next_epoch(0)
    numbering.apply(captured(0, 0.0, 111.0))  # 8 frames, 4 answers, 11 seconds
    event = example(kind)
    before, after = asdict(event), asdict(numbering.apply(event))
    for name, value in before.items():
        is_time = name.endswith("_s") and name not in DURATIONS and kind is not Summary
        shift = 11.0 if is_time else 8 if name.endswith("frame_index") else 4 if name == "answer" else None
        if name == "memory" and kind is Explanation:
            assert after[name] == [replace(token, since_s=token.since_s + 11.0) for token in value]
        else:
            assert after[name] == (value if shift is None else value + shift), name
