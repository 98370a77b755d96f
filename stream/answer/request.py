"""Request to the answer server: the one that is in flight, and the events that its replies become."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from arr_coc.types import NS_PER_MS, NS_PER_S, Feedback, FramePacket, FrameStamp, TokenPacket
from stream.answer.glance import GlanceCosts, GlanceOutcome, GlanceTracker
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
from stream.protocol.buffers import SharedFrameWriter
from stream.protocol.codec import feedback_on
from stream.protocol.device_pixels import PixelSender
from stream.protocol.messages import AnswerDelta, AnswerReply, GlanceReply, YesNoReply
from stream.recording.journal import Journal, JournalGlance
from stream.transport import Envelope
from stream.untrusted import ANSWER_CHARS_MAX, PIECES_MAX

_WORDS = re.compile(r"\w+(?:['’.,]\w+)*")


REPEATS_MAX = 2
"""Times that a request which the server lost is sent again, where no answer is left out."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a client of the answer server.

    `encode` is what the packets are for, `standing_query` what is evaluated with every packet. `reconnect`: where the
    server is lost, another one is looked for; else the run ends. `resend_after_loss`: it is sent the request that the
    lost one left open; else that answer is dropped, as it would be late. `supervised`: somebody else notices the
    server's death. `persistent`: failures one after the other do not end the run; it waits between them. `snapshot`:
    memory shared with the server, for whole frames; `pixels`: device memory shared with it, for the pixels of tokens;
    `journal`: answers of the run that this one continues.
    """

    encode: str = "sparse"
    standing_query: str | None = None
    reconnect: bool = False
    resend_after_loss: bool = False
    persistent: bool = False
    supervised: bool = True
    snapshot: SharedFrameWriter | None = None
    pixels: PixelSender | None = None
    journal: Journal | None = None


@dataclass(frozen=True, slots=True)
class TextAgreement:
    """Agreement of two texts. `same`: equal but for case, punctuation and spaces. `words`: share of equal words."""

    same: bool
    words: float


def text_agreement(one: str, other: str) -> TextAgreement:
    """Return how far two texts agree.

    The share is twice the number of words that match in order, divided by the number of words of both (Ratcliff and
    Obershelp's measure, as difflib has it); two texts without a word agree.
    """
    first, second = words_of(one), words_of(other)
    if not first and not second:
        return TextAgreement(True, 1.0)
    return TextAgreement(first == second, SequenceMatcher(None, first, second, autojunk=False).ratio())


def words_of(text: str) -> list[str]:
    """Return the words of a text without case and punctuation: `"It's 3.5 m!"` is `it's`, `3.5`, `m`."""
    return _WORDS.findall(text.casefold())


@dataclass(slots=True)
class AnswerRequest:
    """A packet that was sent, or is to be sent, and the state of its answer.

    Without `wants_answer` it ends with the result of the standing query; `yes_no_reported`: that was emitted. `shadow`:
    the whole frame, where the answer is verified with it; `verifies`: the answer that this request verifies. `text`:
    the answer so far, in `deltas` pieces. `losses`: how often the server lost it. `sent_ns`: when it was last sent, and
    `turn_ns` how long its turn was waited for. `before_cut`: a new shot has begun since.
    """

    number: int
    packet: TokenPacket | FramePacket
    trigger: str
    wants_answer: bool = True
    yes_no_trigger: str = ""
    yes_no_reported: bool = False
    shadow: FramePacket | None = None
    verifies: Answer | None = None
    sent_ns: int | None = None
    turn_ns: int = 0
    first_text_ns: int | None = None
    text: str = ""
    deltas: int = 0
    losses: int = 0
    before_cut: bool = False

    @property
    def stamp(self) -> FrameStamp:
        """The stamp of the frame that is asked about."""
        return self.packet.stamp

    def restart(self) -> None:
        """Forget what was received of the answer: it is generated again from its beginning."""
        self.first_text_ns, self.text, self.deltas = None, "", 0

    def to_yes_no_event(self, reply: YesNoReply, query: str, now_ns: int) -> YesNoResult:
        """Return the result of the standing query as an event; its verdict is made elsewhere."""
        stamp = self.stamp
        return YesNoResult(
            frame_index=stamp.frame_index,
            pts_s=stamp.media_ns / NS_PER_S,
            trigger=self.yes_no_trigger,
            question=query,
            yes=reply.yes,
            certain=reply.certain,
            holds=None,
            tokens_used=reply.tokens_used,
            tokens_total=self.packet.grid.tiles,
            kept_bytes=reply.kept_bytes,
            timing=YesNoTiming(
                encode_ms=reply.encode_ms,
                prefill_ms=reply.prefill_ms,
                total_ms=(now_ns - stamp.capture_ns) / NS_PER_MS,
            ),
        )

    def to_shadow_event(self, reply: AnswerReply) -> ShadowCheck | None:
        """Return the comparison with the verified answer; None where another query was answered meanwhile."""
        answer = self.verifies
        if answer is None or reply.query != answer.query:
            return None
        agreement = text_agreement(answer.text, reply.text)
        return ShadowCheck(
            answer=answer.answer,
            frame_index=answer.frame_index,
            pts_s=answer.pts_s,
            query=answer.query,
            text=answer.text,
            full_text=reply.text,
            same=agreement.same,
            words=agreement.words,
            tokens_used=answer.tokens_used,
            tokens_full=reply.tokens_used,
        )

    def to_cancelled_event(self, new: FrameStamp, by: str) -> AnswerCancelled:
        """Return the event that this answer is stale; `by` is the cause, `new` the first frame after it."""
        return AnswerCancelled(
            answer=self.number,
            frame_index=self.stamp.frame_index,
            pts_s=self.stamp.media_ns / NS_PER_S,
            trigger=self.trigger,
            text=self.text,
            by=by,
            by_frame_index=new.frame_index,
            by_pts_s=new.media_ns / NS_PER_S,
        )

    def to_answer_event(self, reply: AnswerReply, now_ns: int, glanced: GlanceCosts | None = None) -> Answer:
        """Return the answer as an event; latencies count from the capture of its frame.

        `glanced`: the costs of the glances before it, whose operations count as its own.
        """
        glanced = glanced or GlanceCosts()
        stamp = self.stamp
        end_s = stamp.media_ns / NS_PER_S
        oldest_ns = stamp.media_ns if reply.oldest_frame_ns is None else min(reply.oldest_frame_ns, stamp.media_ns)
        first_ns = self.first_text_ns or now_ns
        return Answer(
            answer=reply.answer,
            frame_index=stamp.frame_index,
            pts_s=end_s,
            start_s=oldest_ns / NS_PER_S,
            end_s=end_s,
            trigger=self.trigger,
            query=reply.query,
            text=reply.text,
            tokens_used=reply.tokens_used,
            tokens_total=self.packet.grid.tiles,
            text_tokens=reply.text_tokens,
            frames=reply.frames,
            kept_bytes=reply.kept_bytes,
            flops=reply.flops + glanced.flops,
            full_flops=reply.full_flops,
            glances=glanced.glances,
            glance_tokens=glanced.tokens,
            before_cut=self.before_cut,
            timing=AnswerTiming(
                encode_ms=reply.encode_ms,
                prefill_ms=reply.prefill_ms,
                decode_ms=reply.decode_ms,
                glance_ms=glanced.ms,
                turn_ms=self.turn_ns / NS_PER_MS,
                sent_ms=0.0 if self.sent_ns is None else (self.sent_ns - stamp.capture_ns) / NS_PER_MS,
                ttft_ms=(first_ns - stamp.capture_ns) / NS_PER_MS,
                total_ms=(now_ns - stamp.capture_ns) / NS_PER_MS,
            ),
        )


class RequestTracker:
    """The open request, at most one: its replies become events, feedback, and entries of the journal.

    `request` is the open one, `next_number` that of the next answer. `lost_answers` counts answers that were lost with
    a server, `cancelled_answers` those that a cut made stale. `glances` are those that prepare the next answer.
    """

    def __init__(self, options: ClientOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._feedback: Feedback | None = None
        self._feedback_error: TransportError | None = None
        self._cancelled_number: int | None = None
        self.glances = GlanceTracker(clock, resends=options.resend_after_loss)
        self.request: AnswerRequest | None = None
        self.next_number = 0
        self.lost_answers = 0
        self.cancelled_answers = 0

    @property
    def is_any_open(self) -> bool:
        """True while an answer or a glance is awaited."""
        return self.request is not None or self.glances.request is not None

    def take_feedback(self) -> Feedback | None:
        """Return the newest feedback since the last call."""
        feedback, self._feedback = self._feedback, None
        return feedback

    def take_feedback_error(self) -> TransportError | None:
        """Return why feedback could not be used, where that was so since the last call."""
        error, self._feedback_error = self._feedback_error, None
        return error

    def from_journal(self, stamp: FrameStamp) -> list[Event]:
        """Return the events of the answer about this frame where the journal holds it, else none."""
        journal = self._options.journal
        entry = None if journal is None else journal.lookup(self.next_number, stamp.frame_index)
        if entry is None:
            return []
        self.next_number += 1
        if entry.feedback is not None:
            self._feedback = dataclasses.replace(entry.feedback, stamp=stamp)
        answer = entry.answer
        return [AnswerDeltaEvent(answer=answer.answer, text=answer.text, pts_s=answer.pts_s), answer]

    def glance_from_journal(self, stamp: FrameStamp) -> bool:
        """Return whether the journal holds the answer about this frame; the glance before it has then ended."""
        journal = self._options.journal
        entry = None if journal is None else journal.lookup(self.next_number, stamp.frame_index)
        if entry is not None and entry.glance is not None:
            feedback = entry.glance.feedback
            feedback = None if feedback is None else dataclasses.replace(feedback, stamp=stamp)
            self.glances.recall(GlanceOutcome(entry.glance.event, stamp, feedback))
        return entry is not None

    def open(self, request: AnswerRequest) -> None:
        """Take a new request. The image of a whole frame may change once this has returned."""
        packet = request.packet
        if isinstance(packet, FramePacket) and not self._write_snapshot(packet):
            request.packet = dataclasses.replace(packet, image=packet.image.copy())
        self.request = request
        self.next_number += request.wants_answer

    def drop(self) -> None:
        """Drop the open request, as its answer would be late, or glance, unless it is to be sent again."""
        self.glances.drop()
        if not self._options.resend_after_loss and self.request is not None:
            self.lost_answers += self.request.verifies is None
            self.request = None

    def on_lost(self, number: int) -> bool | None:
        """The server could give no answer: the request stays open where it is sent again, else it is dropped.

        Returns whether it stays open; None where it was cancelled.
        """
        request = self._request_of(number)
        if request is None:
            return None
        request.losses += 1
        if self._options.resend_after_loss and request.losses <= REPEATS_MAX:
            return True
        self.lost_answers += request.verifies is None
        self.request = None
        return False

    def on_cut(self) -> None:
        """Note that a new shot has begun: the open request is about the one before."""
        if self.request is not None:
            self.request.before_cut = True

    def cancel(self, new: FrameStamp, by: str) -> AnswerCancelled | None:
        """Drop the answer that is being generated because of a cut before the frame `new`; None where there is none.

        Later replies of it are ignored. A verification of another answer, and a standing query alone, go on.
        """
        request = self.request
        if request is None or not request.wants_answer or request.verifies is not None:
            return None
        self.request, self._cancelled_number = None, request.number
        self.cancelled_answers += 1
        return request.to_cancelled_event(new, by)

    def on_delta(self, delta: AnswerDelta) -> AnswerDeltaEvent | None:
        """Take a piece of the answer; None for one that only verifies another, or was cancelled."""
        request = self._request_of(delta.answer)
        if request is None:
            return None
        request.deltas += 1
        if request.deltas > PIECES_MAX or len(request.text) + len(delta.text) > ANSWER_CHARS_MAX:
            raise TransportError(f"an answer has more than {PIECES_MAX} pieces or {ANSWER_CHARS_MAX} characters")
        if request.verifies is not None:
            return None
        request.text += delta.text
        request.first_text_ns = request.first_text_ns or self._clock.now_ns()
        return AnswerDeltaEvent(answer=delta.answer, text=delta.text, pts_s=request.stamp.media_ns / NS_PER_S)

    def on_yes_no(self, reply: YesNoReply, received: Envelope) -> YesNoResult | None:
        """Take the result of the standing query, emitted once: a request that is sent again is evaluated again."""
        request = self._request_of(reply.answer)
        if request is None:
            return None
        if self._options.standing_query is None:
            raise TransportError("the answer server sent a yes/no result, and there is no standing query")
        self._feedback = self._feedback_from(request, reply, received) or self._feedback
        reported, request.yes_no_reported = request.yes_no_reported, True
        if not request.wants_answer:
            self.request = None
        if reported:
            return None
        return request.to_yes_no_event(reply, self._options.standing_query, self._clock.now_ns())

    def on_answer(self, reply: AnswerReply, received: Envelope) -> Answer | ShadowCheck | None:
        """Take the whole answer. Where it is to be verified, a request with the same frame, whole, is open then."""
        request = self._request_of(reply.answer)
        if request is None:
            return None
        feedback = self._feedback_from(request, reply, received)
        self.request = None
        if request.verifies is not None:
            return request.to_shadow_event(reply)
        glance = self.glances.last
        answer = request.to_answer_event(reply, self._clock.now_ns(), self.glances.on_answer())
        self._feedback = feedback or self._feedback
        if request.shadow is not None:
            self._write_snapshot(request.shadow)
            self.request = AnswerRequest(answer.answer, request.shadow, answer.trigger, verifies=answer)
        if self._options.journal is not None:
            kept = None if glance is None else JournalGlance(glance.event, glance.feedback)
            self._options.journal.append(answer, feedback, kept)
        return answer

    def on_glance(self, reply: GlanceReply, received: Envelope) -> None:
        """Take where the model looked. Raises TransportError where that was not asked for."""
        self._feedback_error = self.glances.on_reply(reply, received) or self._feedback_error

    def is_open(self, number: int) -> bool:
        """Return whether the answer of this number is awaited."""
        return self.request is not None and self.request.number == number

    def _feedback_from(
        self, request: AnswerRequest, reply: AnswerReply | YesNoReply, received: Envelope
    ) -> Feedback | None:
        """Return a reply's feedback; None where it is unusable, which makes the answer no worse."""
        try:
            return feedback_on(reply, received.parts, request.stamp, request.packet.grid)
        except TransportError as error:
            self._feedback_error = error
            return None

    def _write_snapshot(self, packet: FramePacket) -> bool:
        """Write the image of a whole frame to the snapshot, where there is one."""
        if self._options.snapshot is not None:
            self._options.snapshot.write(packet.image)
        return self._options.snapshot is not None

    def _request_of(self, number: int) -> AnswerRequest | None:
        """Return the open request of this number; None where it was cancelled. Raises TransportError otherwise."""
        if self.request is not None and self.request.number == number:
            return self.request
        if number == self._cancelled_number:
            return None
        raise TransportError(f"the answer server refers to answer {number}, which was not asked for")
