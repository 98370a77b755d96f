"""Requests to the answer server: options, the one that is in flight, and what its replies become."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from arr_coc.types import NS_PER_S, Feedback, FramePacket, FrameStamp, TokenPacket
from stream.clock import Clock
from stream.errors import TransportError
from stream.events import (
    Answer,
    AnswerCancelled,
    AnswerDeltaEvent,
    AnswerTiming,
    Event,
    ShadowCheck,
    YesNoResult,
    YesNoTiming,
)
from stream.protocol.buffers import SnapshotWriter
from stream.protocol.codec import check_taught, feedback_of
from stream.protocol.messages import AnswerDelta, AnswerReply, YesNoReply
from stream.recording.journal import Journal
from stream.transport import Received
from stream.untrusted import ANSWER_CHARS_MAX, PIECES_MAX


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What is sent, and how the conversation goes on when the answer stage is lost.

    `encode` is what the packets are for. `rejoin`: a new answer stage is looked for, else the run ends. `repeat`: it is
    asked again what the lost one was asked, else that answer is given up, as it would be late. `supervised`: somebody
    else notices its death. `snapshot`: where whole frames are laid, shared with it; `journal`: the answers of a run
    that this one continues. `standing_query` is a standing question, to be looked at with every packet.
    """

    encode: str = "sparse"
    standing_query: str | None = None
    rejoin: bool = False
    repeat: bool = False
    supervised: bool = True
    snapshot: SnapshotWriter | None = None
    journal: Journal | None = None


_WORDS = re.compile(r"\w+(?:['’.,]\w+)*")


@dataclass(frozen=True, slots=True)
class TextAgreement:
    """`same`: equal but for case, punctuation and spaces. `words`: share of equal words, in [0, 1]."""

    same: bool
    words: float


def text_agreement(one: str, other: str) -> TextAgreement:
    """How far two texts agree.

    The share is twice the number of words that match in order, divided by the number of words of both (Ratcliff and
    Obershelp's measure, as difflib has it); two texts without a word agree.
    """
    first, second = words_of(one), words_of(other)
    if not first and not second:
        return TextAgreement(True, 1.0)
    return TextAgreement(first == second, SequenceMatcher(None, first, second, autojunk=False).ratio())


def words_of(text: str) -> list[str]:
    """The words of a text without case and punctuation: `"It's 3.5 m!"` is `it's`, `3.5`, `m`."""
    return _WORDS.findall(text.casefold())


NS_PER_MS = 1_000_000


@dataclass(slots=True)
class AnswerRequest:
    """An answer that is awaited, and the packet that it is about.

    With `wants_answer` off it ends with a look at the standing question. `looked`: that has been told. `shadow`: the
    whole frame, where the answer is checked by another one about that; `checks`: the answer that this one checks.
    `spoken`: the text so far, in so many `pieces`.
    """

    number: int
    packet: TokenPacket | FramePacket
    trigger: str
    asked_ns: int
    wants_answer: bool = True
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

    def look(self, message: YesNoReply, question: str, heard_ns: int) -> YesNoResult:
        """The look as an event; what holds after it is for others to say."""
        stamp = self.stamp
        return YesNoResult(
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
            timing=YesNoTiming(
                encode_ms=message.encode_ms,
                prefill_ms=message.prefill_ms,
                total_ms=(heard_ns - stamp.capture_ns) / NS_PER_MS,
            ),
        )

    def checked(self, message: AnswerReply) -> ShadowCheck | None:
        """What the check found; None where it was asked another question meanwhile."""
        answer = self.checks
        if answer is None or message.query != answer.query:
            return None
        found = text_agreement(answer.text, message.text)
        return ShadowCheck(
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

    def answered(self, message: AnswerReply, heard_ns: int) -> Answer:
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


class RequestTracker:
    """What is asked, and what comes of it: events, feedback, and entries in the journal.

    `question` is the one that is open; `number` the next answer's. `given_up` counts answers that were lost with an
    answer stage, `cancelled` those that a cut made stale.
    """

    def __init__(self, manners: ClientOptions, clock: Clock) -> None:
        self._manners = manners
        self._clock = clock
        self._feedback: Feedback | None = None
        self._fault: TransportError | None = None
        self.question: AnswerRequest | None = None
        self.number = 0
        self.given_up = 0
        self.cancelled = 0
        self._cancelled_number: int | None = None

    def take_feedback(self) -> Feedback | None:
        """What the answers have taught since the last call; the newest one where there were several."""
        feedback, self._feedback = self._feedback, None
        return feedback

    def take_fault(self) -> TransportError | None:
        """Why what an answer taught could not be used, where that was so since the last call."""
        fault, self._fault = self._fault, None
        return fault

    def recall(self, stamp: FrameStamp) -> list[Event]:
        """The answer about this frame where the journal holds it, as events; nothing where it is to be asked for."""
        journal = self._manners.journal
        found = None if journal is None else journal.lookup(self.number, stamp.frame_index)
        if found is None:
            return []
        self.number += 1
        if found.feedback is not None:
            self._feedback = dataclasses.replace(found.feedback, stamp=stamp)
        answer = found.answer
        return [AnswerDeltaEvent(answer=answer.answer, text=answer.text, pts_s=answer.pts_s), answer]

    def open(self, question: AnswerRequest) -> None:
        """Awaits the answer to a question. The image of a whole frame may change once this has returned."""
        packet = question.packet
        if isinstance(packet, FramePacket) and not self._lay(packet):
            question.packet = dataclasses.replace(packet, image=packet.image.copy())
        self.question = question
        self.number += question.wants_answer

    def give_up(self) -> None:
        """The open question is late by now, unless it is to be repeated."""
        if not self._manners.repeat and self.question is not None:
            self.given_up += self.question.checks is None
            self.question = None

    def cancel(self, new: FrameStamp, by: str) -> AnswerCancelled | None:
        """Drops the answer that is being spoken, because of a cut before the frame `new`; None where there is none.

        What the answer stage still says of it is ignored. A check of another answer, and a look, are no such answers.
        """
        question = self.question
        if question is None or not question.wants_answer or question.checks is not None:
            return None
        self.question, self._cancelled_number = None, question.number
        self.cancelled += 1
        return question.cancelled(new, by)

    def text(self, message: AnswerDelta, heard_ns: int) -> AnswerDeltaEvent | None:
        """A piece of the answer; None of one that only checks another, or was cancelled."""
        question = self._asked_for(message.answer)
        if question is None:
            return None
        question.pieces += 1
        if question.pieces > PIECES_MAX or len(question.spoken) + len(message.text) > ANSWER_CHARS_MAX:
            raise TransportError(f"an answer has more than {PIECES_MAX} pieces or {ANSWER_CHARS_MAX} characters")
        if question.checks is not None:
            return None
        question.spoken += message.text
        question.first_text_ns = question.first_text_ns or heard_ns
        return AnswerDeltaEvent(answer=message.answer, text=message.text, pts_s=question.stamp.media_ns / NS_PER_S)

    def looked(self, message: YesNoReply, received: Received, heard_ns: int) -> YesNoResult | None:
        """One look, told once: a question that is repeated is looked at again."""
        question = self._asked_for(message.answer)
        if question is None:
            return None
        if self._manners.standing_query is None:
            raise TransportError("the answer stage looked for something, and nothing was to be looked for")
        feedback = self._taught(question, message, received)
        known, question.looked = question.looked, True
        self._feedback = feedback or self._feedback
        if not question.wants_answer:
            self.question = None
        return None if known else question.look(message, self._manners.standing_query, heard_ns)

    def answered(self, message: AnswerReply, received: Received, heard_ns: int) -> Answer | ShadowCheck | None:
        """The whole answer. Where it is to be checked, the next question is open then: about the same frame, whole."""
        question = self._asked_for(message.answer)
        if question is None:
            return None
        feedback = self._taught(question, message, received)
        self.question = None
        if question.checks is not None:
            return question.checked(message)
        answer = question.answered(message, heard_ns)
        self._feedback = feedback or self._feedback
        if question.shadow is not None:
            self._lay(question.shadow)
            self.question = AnswerRequest(
                answer.answer, question.shadow, answer.trigger, self._clock.now_ns(), checks=answer
            )
        if self._manners.journal is not None:
            self._manners.journal.append(answer, feedback)
        return answer

    def _taught(
        self, question: AnswerRequest, message: AnswerReply | YesNoReply, received: Received
    ) -> Feedback | None:
        """What an answer teaches; nothing where that is none, which makes the answer no worse."""
        try:
            feedback = feedback_of(message, received.parts)
            check_taught(feedback, question.stamp, question.packet.grid)
        except TransportError as error:
            self._fault = error
            return None
        return feedback

    def _lay(self, packet: FramePacket) -> bool:
        """Lays the image of a whole frame into the snapshot, where there is one."""
        if self._manners.snapshot is not None:
            self._manners.snapshot.write(packet.image)
        return self._manners.snapshot is not None

    def is_open(self, number: int) -> bool:
        """Whether the answer of this number is awaited."""
        return self.question is not None and self.question.number == number

    def _asked_for(self, number: int) -> AnswerRequest | None:
        """The open question of this number; None where its answer was cancelled. Raises TransportError otherwise."""
        if self.question is not None and self.question.number == number:
            return self.question
        if number == self._cancelled_number:
            return None
        raise TransportError(f"the answer stage speaks of answer {number}, which was not asked for")
