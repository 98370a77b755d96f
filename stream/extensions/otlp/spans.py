"""Time spans of an answer, from the timestamps of its frame and of the answer."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from arr_coc.types import NS_PER_MS
from stream.events import AnswerPoint, FrameReady

FRAMES_KNOWN = 512
"""Number of newest frames whose times are kept for their answers."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Part of an answer's time, in monotonic nanoseconds."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class AnswerTrace:
    """Time of an answer from its frame's capture to its last token: the total, its parts, and the first token."""

    total: TimeSpan
    parts: tuple[TimeSpan, ...]
    first_text_ns: int


class FrameTimes:
    """Times of the newest frames, from which answers' traces are computed. Pure."""

    def __init__(self) -> None:
        self._frames: OrderedDict[int, FrameReady] = OrderedDict()

    def add(self, frame: FrameReady) -> None:
        """Add a frame."""
        self._frames[frame.frame_index] = frame
        while len(self._frames) > FRAMES_KNOWN:
            self._frames.popitem(last=False)

    def trace(self, answer: AnswerPoint, now_ns: int) -> AnswerTrace | None:
        """Return the trace of an answer that has just arrived; None if its times are not known.

        They are unknown without a latency, for a frame too long ago, and for an answer of an earlier run (`--resume`).
        """
        frame = self._frames.get(answer.frame_index)
        timing = answer.timing
        if frame is None or timing is None or timing.sent_ms <= 0:
            return None
        begin_ns = frame.capture_ns
        end_ns = begin_ns + _ns(timing.total_ms)
        if end_ns > now_ns:
            return None
        sent_ns = begin_ns + _ns(timing.sent_ms)
        done_ns = max(begin_ns, frame.ready_ns - _ns(frame.held_ms))
        allocated_ns = max(begin_ns, done_ns - _ns(frame.allocate_ms))
        textured_ns = max(begin_ns, allocated_ns - _ns(frame.texture_ms))
        decode_ns = max(sent_ns, end_ns - _ns(timing.decode_ms))
        prefill_ns = max(sent_ns, decode_ns - _ns(timing.prefill_ms))
        encode_ns = max(sent_ns, prefill_ns - _ns(timing.encode_ms))
        parts = (
            TimeSpan("capture", begin_ns, textured_ns),
            TimeSpan("texture", textured_ns, allocated_ns),
            TimeSpan("allocate", allocated_ns, done_ns),
            TimeSpan("wait for a turn", done_ns, max(done_ns, sent_ns)),
            TimeSpan("encode", encode_ns, prefill_ns),
            TimeSpan("prefill", prefill_ns, decode_ns),
            TimeSpan("decode", decode_ns, end_ns),
        )
        return AnswerTrace(TimeSpan("answer", begin_ns, end_ns), parts, begin_ns + _ns(timing.ttft_ms))


def _ns(milliseconds: float) -> int:
    return round(milliseconds * NS_PER_MS)
