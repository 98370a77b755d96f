"""One answer that is awaited: what was asked about which packet, and when."""

from __future__ import annotations

from dataclasses import dataclass

from arr_coc.types import NS_PER_S, FramePacket, FrameStamp, TokenPacket
from stream.agreement import agreement
from stream.events import Answer, AnswerCancelled, AnswerTiming, Looked, LookTiming, Shadow
from stream.messages import Answered
from stream.messages import Looked as LookedMessage

NS_PER_MS = 1_000_000


@dataclass(slots=True)
class Question:
    """An answer that is awaited, and the packet that it is about.

    With `speak` off it ends with a look at the standing question. `looked`: that has been told. `shadow`: the whole
    frame, where the answer is checked by another one about that; `checks`: the answer that this one checks.
    `spoken`: the text so far, in so many `pieces`.
    """

    number: int
    packet: TokenPacket | FramePacket
    trigger: str
    asked_ns: int
    speak: bool = True
    look_trigger: str = ""
    looked: bool = False
    shadow: FramePacket | None = None
    checks: Answer | None = None
    first_text_ns: int | None = None
    spoken: str = ""
    pieces: int = 0

    @property
    def stamp(self) -> FrameStamp:
        return self.packet.stamp

    def look(self, message: LookedMessage, question: str, heard_ns: int) -> Looked:
        """The look as an event; what holds after it is for others to say."""
        stamp = self.stamp
        return Looked(
            frame_index=stamp.frame_index,
            pts_s=stamp.media_ns / NS_PER_S,
            trigger=self.look_trigger,
            question=question,
            yes=message.yes,
            certain=message.certain,
            holds=None,
            tokens_used=message.tokens_used,
            tokens_total=self.packet.grid.tiles,
            kept_bytes=message.kept_bytes,
            timing=LookTiming(
                encode_ms=message.encode_ms,
                prefill_ms=message.prefill_ms,
                total_ms=(heard_ns - stamp.capture_ns) / NS_PER_MS,
            ),
        )

    def checked(self, message: Answered) -> Shadow | None:
        """What the check found; None where it was asked another question meanwhile."""
        answer = self.checks
        if answer is None or message.query != answer.query:
            return None
        found = agreement(answer.text, message.text)
        return Shadow(
            answer=answer.answer,
            frame_index=answer.frame_index,
            pts_s=answer.pts_s,
            query=answer.query,
            text=answer.text,
            full_text=message.text,
            same=found.same,
            words=found.words,
            tokens_used=answer.tokens_used,
            tokens_full=message.tokens_used,
        )

    def cancelled(self, new: FrameStamp, by: str) -> AnswerCancelled:
        """The event that this answer is stale; `by` says what made it so, `new` is the first frame after that."""
        return AnswerCancelled(
            answer=self.number,
            frame_index=self.stamp.frame_index,
            pts_s=self.stamp.media_ns / NS_PER_S,
            trigger=self.trigger,
            text=self.spoken,
            by=by,
            by_frame_index=new.frame_index,
            by_pts_s=new.media_ns / NS_PER_S,
        )

    def answered(self, message: Answered, heard_ns: int) -> Answer:
        """The answer as an event; latencies count from the capture of its frame."""
        stamp = self.stamp
        at_s = stamp.media_ns / NS_PER_S
        since_ns = stamp.media_ns if message.since_ns is None else min(message.since_ns, stamp.media_ns)
        first_ns = self.first_text_ns or heard_ns
        return Answer(
            answer=message.answer,
            frame_index=stamp.frame_index,
            pts_s=at_s,
            start_s=since_ns / NS_PER_S,
            end_s=at_s,
            trigger=self.trigger,
            query=message.query,
            text=message.text,
            tokens_used=message.tokens_used,
            tokens_total=self.packet.grid.tiles,
            text_tokens=message.text_tokens,
            frames=message.frames,
            kept_bytes=message.kept_bytes,
            flops=message.flops,
            full_flops=message.full_flops,
            timing=AnswerTiming(
                encode_ms=message.encode_ms,
                prefill_ms=message.prefill_ms,
                decode_ms=message.decode_ms,
                ttft_ms=(first_ns - stamp.capture_ns) / NS_PER_MS,
                total_ms=(heard_ns - stamp.capture_ns) / NS_PER_MS,
            ),
        )
