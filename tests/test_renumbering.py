"""Events of one frame process after another, as one run counts them."""

from __future__ import annotations

from msgspec.structs import replace

from arr_coc.types import NS_PER_S
from stream.events import Answer, AnswerCancelled, AnswerDeltaEvent, Cut, Event, FrameReady, Notice, Outage
from stream.renumbering import EventRebaser
from tests.event_maker import answer, frame


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


def test_a_file_keeps_its_own_times_and_is_told_where_to_go_on() -> None:
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
    told = numbering.apply(answer(0.0, "two"))
    assert isinstance(told, Answer)
    assert (told.answer, told.frame_index) == (2, 1)
    assert (told.pts_s, told.start_s, told.end_s) == (2.0, 2.0, 2.0)


def test_a_cancelled_answer_has_a_number_and_both_of_its_times_go_on() -> None:
    numbering = EventRebaser(live=True)
    numbering.apply(captured(0, 0.0, 100))
    numbering.next_epoch(0)
    numbering.apply(captured(0, 0.0, 102))
    stale = AnswerCancelled(
        answer=0, frame_index=0, pts_s=0.0, trigger="start", text="", by="cut", by_frame_index=3, by_pts_s=0.5
    )
    told = numbering.apply(stale)
    assert told == replace(stale, frame_index=1, pts_s=2.0, by_frame_index=4, by_pts_s=2.5)
    numbering.next_epoch(0)
    numbering.apply(captured(0, 0.0, 104))
    following = numbering.apply(AnswerDeltaEvent(answer=0, text="two"))
    assert isinstance(following, AnswerDeltaEvent)
    assert following.answer == 1


def test_text_without_a_time_gets_none() -> None:
    numbering = EventRebaser(live=True)
    numbering.apply(captured(0, 5.0, 105))
    numbering.next_epoch(0)
    numbering.apply(captured(0, 0.0, 106))
    assert numbering.apply(AnswerDeltaEvent(answer=0, text="two")) == AnswerDeltaEvent(answer=0, text="two")


def test_a_process_that_dies_before_its_first_frame_changes_nothing() -> None:
    numbering = EventRebaser(live=True)
    assert numbering.next_epoch(0) is None
    numbering.apply(captured(0, 5.0, 105))
    for _ in range(2):
        numbering.next_epoch(0)
    assert numbers(numbering.apply(captured(0, 0.0, 107))) == (1, 7.0)
    assert numbers(numbering.apply(captured(1, 0.5, 107.5))) == (2, 7.5)


def test_a_third_process_goes_on_where_the_second_was() -> None:
    numbering = EventRebaser(live=True)
    for begin in range(3):
        numbering.next_epoch(0)
        numbering.apply(captured(0, 0.0, 100 + 2 * begin))
        last = numbering.apply(captured(1, 1.0, 101 + 2 * begin))
        assert numbers(last) == (2 * begin + 1, 2.0 * begin + 1)
