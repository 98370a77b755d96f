"""Events between threads and as JSON."""

from __future__ import annotations

import json
import typing

import msgspec
import pytest

from arr_coc.types import TokenReason
from stream.events import (
    GROUP,
    PICTURE,
    Answer,
    AnswerCancelled,
    AnswerDeltaEvent,
    AnswerInvalid,
    AnswerPoint,
    AnswerTiming,
    AnswerUnchanged,
    AnyEvent,
    AskedPicture,
    BudgetChanged,
    ClipWritten,
    Cut,
    Detection,
    Detections,
    Event,
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
    SideAnswer,
    SideRefused,
    SideText,
    Skipped,
    StandingQuestion,
    Started,
    Summary,
    VerdictChanged,
    VideoFragment,
    WatchesChanged,
    YesNoResult,
    YesNoTiming,
    encode_event,
    pack_event,
    unpack_event,
)
from tests.support.events import glance, match

ABSENT = (
    ("time", None),
    ("timing", None),
    ("warning", None),
    ("memory", None),
    ("fields", None),
    ("looped", False),
    ("escalated", False),
    ("unchanged", 0),
    ("invalid", 0),
    ("shadow", None),
    ("meaning", None),
)
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
    AnswerUnchanged(
        **{name: getattr(ANSWER, name) for name in ANSWER.__struct_fields__}, since_s=0.25, probability=0.75
    ),
    Detections(
        frame_index=2,
        pts_s=0.5,
        answer=1,
        width_px=640,
        height_px=480,
        objects=[
            Detection(label="<b>cat</b>", box=[1.0, 2.5, 30.0, 40.0], score=0.5),
            Detection(label="dog", point=[3.0, 4.0]),
        ],
    ),
    AnswerInvalid(**{name: getattr(ANSWER, name) for name in ANSWER.__struct_fields__}, reason="it is empty"),
    AnswerCancelled(
        answer=2, frame_index=3, pts_s=0.5, trigger="every", text="a ", by="cut", by_frame_index=4, by_pts_s=0.75
    ),
    YesNoResult(
        watch="w",
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
    VerdictChanged(watch="w", frame_index=2, pts_s=0.5, question="?", to="yes", yes=0.75, certain=0.5),
    match(0.5),
    SHADOW,
    BudgetChanged(
        answer=1, frame_index=2, pts_s=0.5, reason="differ", from_tokens=6, to_tokens=9, differing=3, checks=8
    ),
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
    SideText(question=1, text="a c"),
    SideAnswer(
        question=1,
        query="What?",
        text="a cat",
        frame_index=3,
        start_s=0.0,
        end_s=1.0,
        frames=2,
        tokens_used=9,
        tokens_total=10,
        text_tokens=3,
        prefilled_tokens=12,
    ),
    SideRefused(question=2, error="too long"),
    WatchesChanged(watch="door", watches=[StandingQuestion("door", "Is the door open?")]),
    ClipWritten(match=1, watch="until", picture="a.jpg", video="a.mp4", start_s=0.0, end_s=1.5),
    VideoFragment(data=b"moof", init=b"ftyp", start_s=0.5, duration_s=1.0, track_s=0.25, key=True),
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
    kinds = {*Event.__subclasses__(), *AnswerPoint.__subclasses__()} - {AnswerPoint}
    of_a_run = {kind for kind in kinds if kind.__module__ == Event.__module__}
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
    expected = json.loads(msgspec.json.encode(event))
    assert values == {
        key: value for key, value in expected.items() if (key, value) not in ABSENT and key not in (*PICTURE, *GROUP)
    }


def test_the_time_of_day_of_a_live_source_stands_before_the_fields() -> None:
    event = msgspec.structs.replace(match(1.5), time="2026-11-28T14:05:09.250+01:00")
    line = encode_event(event, "porch")
    assert line.startswith('{"type":"match","camera":"porch","time":"2026-11-28T14:05:09.250+01:00","match":1,')
    assert unpack_event(pack_event(event)) == event


def test_an_answer_without_timing_lacks_what_depends_on_the_run() -> None:
    timed = json.loads(encode_event(ANSWER))
    plain = json.loads(encode_event(msgspec.structs.replace(ANSWER, timing=None)))
    assert timed.keys() - plain.keys() == {"timing", "prefilled_tokens", "appended_tokens"}
    grouped_fields = json.loads(encode_event(msgspec.structs.replace(ANSWER, timing=None, group=1)))
    assert timed.keys() - grouped_fields.keys() == {"timing", "prefilled_tokens"}


@pytest.mark.parametrize("mark", ["looped", "escalated"])
def test_an_answer_that_was_ended_in_a_loop_or_escalated_says_so(mark: str) -> None:
    marked = msgspec.structs.replace(ANSWER, **{mark: True})
    assert json.loads(encode_event(marked)) == {**json.loads(encode_event(ANSWER)), mark: True}
    assert unpack_event(pack_event(marked)) == marked


def test_other_objects_are_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        unpack_event(b"nonsense")
