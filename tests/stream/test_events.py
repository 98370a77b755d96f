"""Events between threads and as JSON."""

from __future__ import annotations

import json
import typing

import msgspec
import pytest
from msgspec.structs import replace

from arr_coc.types import NS_PER_S, TokenReason
from stream.events import (
    PICTURE,
    Answer,
    AnswerCancelled,
    AnswerDeltaEvent,
    AnswerTiming,
    AnyEvent,
    AskedPicture,
    Cut,
    Event,
    EventRebaser,
    Explanation,
    FrameMap,
    FrameReady,
    Notice,
    Outage,
    PictureChanged,
    QueryChanged,
    Restarted,
    SegmentWritten,
    ShadowCheck,
    Skipped,
    Started,
    Summary,
    VerdictChanged,
    YesNoResult,
    YesNoTiming,
    encode_event,
    pack_event,
    unpack_event,
)
from tests.support.events import answer, frame, glance, segment

ABSENT = (("timing", None), ("warning", None))
"""Fields that are left out, beside pictures."""

TIMING = AnswerTiming(encode_ms=1.5, prefill_ms=2.5, decode_ms=3.5, ttft_ms=4.5, total_ms=5.5)
SHADOW = ShadowCheck(
    answer=1,
    frame_index=2,
    pts_s=0.5,
    query="?",
    text="a",
    full_text="b",
    same=False,
    words=0.0,
    tokens_used=3,
    tokens_full=4,
)
REASON = TokenReason(0, 1, 2, 1, 0.5, 0.25, 0.25, {"information": 0.5}, {"information": 1.0})
ANSWER = Answer(
    answer=1,
    frame_index=2,
    pts_s=0.5,
    start_s=0.5,
    end_s=0.5,
    trigger="cut",
    query="?",
    text="a «star» ▲",
    tokens_used=3,
    tokens_total=4,
    text_tokens=5,
    timing=TIMING,
)
EVENTS: list[Event] = [
    Started(source="a.mp4", model="m", query="?", backend="cpu"),
    Cut(frame_index=7, pts_s=0.25, score=0.75),
    PictureChanged(frame_index=7, pts_s=0.25, reason="resolution", width_px=64, height_px=32),
    Skipped(frame_index=3, pts_s=0.125, what="packet 4", reason="bad"),
    Notice(code="loading", message="loading m"),
    Outage(frame_index=3, pts_s=0.1, reason="timed out"),
    Restarted(process="answers", cause="killed by SIGKILL", count=1),
    QueryChanged(query="Where?"),
    AnswerDeltaEvent(answer=1, text="a "),
    glance(0.5, slot=3, map=FrameMap(rows=1, cols=1, relevance=b"\xff", regions=b"\0" * 6, overview=1)),
    ANSWER,
    AnswerCancelled(
        answer=2, frame_index=3, pts_s=0.5, trigger="every", text="a ", by="cut", by_frame_index=4, by_pts_s=0.75
    ),
    YesNoResult(
        frame_index=2,
        pts_s=0.5,
        trigger="change",
        question="?",
        yes=0.75,
        certain=0.5,
        holds="yes",
        tokens_used=3,
        tokens_total=4,
        timing=YesNoTiming(encode_ms=1.5, prefill_ms=2.5, total_ms=5.5),
    ),
    VerdictChanged(frame_index=2, pts_s=0.5, question="?", to="yes", yes=0.75, certain=0.5),
    SHADOW,
    Explanation(frame_index=2, pts_s=0.5, strategy="mixed", weights={"information": 1.0}, tokens=[REASON]),
    AskedPicture(frame_index=2, pts_s=0.5, jpeg=b"\xff\xd8"),
    SegmentWritten(
        file=".segment-7-1.m4s",
        header=".segment-7-0.mp4",
        start_s=0.5,
        duration_s=2.0,
        track_s=0.25,
        size_bytes=9,
        codec="avc1.64001e",
        width_px=64,
        height_px=48,
    ),
    FrameReady(
        frame_index=0,
        pts_s=0.0,
        capture_ns=1,
        ready_ns=2,
        texture_ms=0.5,
        allocate_ms=0.25,
        dirty_share=1.0,
        tokens=9,
        tiles=10,
        jitter_share=0.0,
        slot=4,
        map=FrameMap(rows=1, cols=1, relevance=b"\xff", regions=b"\0" * 6),
    ),
    Summary(
        frames=1,
        duration_s=0.0,
        answers=1,
        cuts=0,
        skipped=0,
        dropped={"capture.replaced": 2},
        mean_tokens=9.0,
        mean_dirty_share=1.0,
        ended="finished",
        backend="cpu",
    ),
]


def test_every_kind_is_tried_here() -> None:
    of_a_run = {kind for kind in Event.__subclasses__() if kind.__module__ == Event.__module__}
    assert {type(event) for event in EVENTS} == set(typing.get_args(AnyEvent)) == of_a_run


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_the_way_between_threads(event: Event) -> None:
    assert unpack_event(pack_event(event)) == event


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_one_line_of_json_with_its_type_first(event: Event) -> None:
    line = encode_event(event)
    assert "\n" not in line
    values = json.loads(line)
    assert next(iter(values)) == "type"
    expected = msgspec.to_builtins(event)
    assert values == {
        key: value for key, value in expected.items() if (key, value) not in ABSENT and key not in PICTURE
    }


def test_an_answer_without_timing_does_not_mention_it() -> None:
    assert "timing" in json.loads(encode_event(ANSWER))
    assert "timing" not in json.loads(encode_event(msgspec.structs.replace(ANSWER, timing=None)))


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        unpack_event(b"nonsense")


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
    moved = numbering.apply(segment(0.25, track_s=0.25))
    assert isinstance(moved, SegmentWritten)
    assert (moved.start_s, moved.track_s) == (11.5, 0.25)


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
