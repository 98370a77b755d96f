"""Parts of an answer's time: they lie inside it, follow each other, and match the measured times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stream.events import AnswerTiming
from stream.extensions.otlp.spans import FRAMES_KNOWN, FrameTimes
from tests.support.events import answer, frame

MS = 1_000_000

TIMING = AnswerTiming(encode_ms=10, prefill_ms=20, decode_ms=30, ttft_ms=75, total_ms=100, turn_ms=12, sent_ms=35)

FRAME = frame(7, 0.0, capture_ns=1000 * MS, ready_ns=1020 * MS, texture_ms=4.0, allocate_ms=6.0)

LATER = 10**18


def test_parts_have_their_measured_times() -> None:
    times = FrameTimes()
    times.add(FRAME)
    trace = times.trace(answer(0.0, "a cat", frame_index=7, timing=TIMING), LATER)
    assert trace is not None
    assert (trace.total.start_ns, trace.total.end_ns, trace.first_text_ns) == (1000 * MS, 1100 * MS, 1075 * MS)
    assert [(part.name, part.start_ns // MS - 1000, part.end_ns // MS - 1000) for part in trace.parts] == [
        ("capture", 0, 10),
        ("texture", 10, 14),
        ("allocate", 14, 20),
        ("wait for a turn", 20, 35),
        ("encode", 40, 50),
        ("prefill", 50, 70),
        ("decode", 70, 100),
    ]


def test_answers_whose_times_are_not_known_have_no_trace() -> None:
    times = FrameTimes()
    point = answer(0.0, "a cat", frame_index=7, timing=TIMING)
    assert times.trace(point, LATER) is None
    times.add(FRAME)
    assert times.trace(point, LATER) is not None
    assert times.trace(replace(point, timing=None), LATER) is None
    assert times.trace(replace(point, timing=replace(TIMING, sent_ms=0.0)), LATER) is None
    assert times.trace(point, 1099 * MS) is None, "it is of an earlier run"
    for number in range(FRAMES_KNOWN):
        times.add(frame(100 + number, 0.0))
    assert times.trace(point, LATER) is None


@given(st.lists(st.floats(0, 1e4), min_size=7, max_size=7), *[st.floats(0, 1e3)] * 4)
def test_parts_lie_in_the_answer_and_never_end_before_they_begin(
    milliseconds: list[float], ready_ms: float, texture_ms: float, allocate_ms: float, held_ms: float
) -> None:
    encode, prefill, decode, ttft, after, turn, sent_ms = milliseconds
    times = FrameTimes()
    ready_ns = 1000 * MS + round(ready_ms * MS)
    worked = {"texture_ms": texture_ms, "allocate_ms": allocate_ms, "held_ms": held_ms}
    times.add(frame(7, 0.0, capture_ns=1000 * MS, ready_ns=ready_ns, **worked))
    timing = AnswerTiming(
        encode_ms=encode,
        prefill_ms=prefill,
        decode_ms=decode,
        ttft_ms=ttft,
        total_ms=max(ready_ms, sent_ms) + after + 0.001,
        turn_ms=turn,
        sent_ms=sent_ms + 0.001,
    )
    trace = times.trace(answer(0.0, "a", frame_index=7, timing=timing), LATER)
    assert trace is not None
    for part in trace.parts:
        assert trace.total.start_ns <= part.start_ns <= part.end_ns
        assert part.end_ns <= trace.total.end_ns + MS
    ends = [part.end_ns for part in trace.parts[:3]]
    assert [part.start_ns for part in trace.parts[1:4]] == ends
