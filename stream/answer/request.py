"""Requests to the answer server: the answer and the glance in flight, and the outcomes of their replies.

A glance comes before an answer for which no feedback is available yet: the model reads a coarse overview of the frame
with the question, and its attention is the feedback by which the frame's tokens are then chosen.
"""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeAlias

from msgspec import structs

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import counted
from arr_coc.qwen.grounding import GROUNDED
from arr_coc.types import (
    NS_PER_MS,
    NS_PER_S,
    Feedback,
    FramePacket,
    FrameStamp,
    PastAnswer,
    PreviousAnswer,
    Question,
    TokenPacket,
)
from stream.answer.detections import DetectionReader
from stream.answer.embeddings import EmbeddedQuestion, RefusedQuestion
from stream.answer.idle import IdleCosts, IdleExchange, IdleOutcome
from stream.answer.memory import SentGroup
from stream.answer.triggers import SIDE, Check
from stream.errors import TransportError
from stream.events import (
    Answer,
    AnswerCancelled,
    AnswerDeltaEvent,
    AnswerInvalid,
    AnswerPoint,
    AnswerTiming,
    AnswerUnchanged,
    Detections,
    Event,
    Glance,
    GlanceTiming,
    ShadowCheck,
    YesNoResult,
    YesNoTiming,
)
from stream.protocol.buffers import SharedFrameWriter
from stream.protocol.codec import feedback_on
from stream.protocol.device_pixels import PixelSender
from stream.protocol.messages import AnswerDelta, AnswerReply, GlanceReply, YesNoReply
from stream.recording.journal import Journal, JournalEntry, JournalGlance
from stream.transport import Envelope
from stream.untrusted import ANSWER_CHARS_MAX, HISTORY_CHARS_MAX, PIECES_MAX, REASON_CHARS_MAX, cut_to, printable

_WORDS = re.compile(r"\w+(?:['’.,]\w+)*")


REPEATS_MAX = 2
"""Times that a lost request is sent again with `resend_after_loss`."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a client of the answer server.

    `encode`: encoding of the packets; `watches`: questions that may be evaluated with them. `reconnect`: look for
    another server after a loss; otherwise the run ends. `resend_after_loss`: send the open request to that server
    again; otherwise drop its answer, which would be late. `persistent`: pause after consecutive failures instead of
    ending the run. `snapshot`: memory shared with the server, for whole frames; `pixels`: device memory shared with it,
    for the pixels of tokens; `journal`: answers of the run that this one continues. `history`, `history_spans_cuts` and
    `same_above`: as in AnswerHistory. `source_px`: as in DetectionReader. `schema`: schema of the answers. `agree`:
    least likeness of answers that agree in a shadow check; `asks_meaning`: that is the model's probability that both
    say the same, else the share of equal words.
    """

    encode: str = "sparse"
    watches: tuple[str, ...] = ()
    reconnect: bool = False
    resend_after_loss: bool = False
    persistent: bool = False
    snapshot: SharedFrameWriter | None = None
    pixels: PixelSender | None = None
    journal: Journal | None = None
    history: int = 0
    history_spans_cuts: bool = False
    same_above: float | None = None
    source_px: tuple[int, int] | None = None
    schema: AnswerSchema | None = None
    agree: float = 1.0
    asks_meaning: bool = False


@dataclass(frozen=True, slots=True)
class GlanceRequest:
    """Overview of a frame for the question `text` that was sent at `sent_ns`, or is to be sent again."""

    number: int
    packet: TokenPacket
    text: str
    sent_ns: int

    def to_event(self, reply: GlanceReply, total_ms: float) -> Glance:
        """Return the glance as an event."""
        stamp = self.packet.stamp
        return Glance(
            frame_index=stamp.frame_index,
            pts_s=stamp.media_ns / NS_PER_S,
            query=self.text,
            tokens_used=reply.work.tokens_used,
            tokens_total=self.packet.grid.tiles,
            timing=GlanceTiming(encode_ms=reply.work.encode_ms, prefill_ms=reply.work.prefill_ms, total_ms=total_ms),
        )


@dataclass(frozen=True, slots=True)
class GlanceOutcome:
    """Result of a glance. `feedback` is None if it was unusable."""

    event: Glance
    stamp: FrameStamp
    feedback: Feedback | None


@dataclass(frozen=True, slots=True)
class GlanceCosts:
    """Costs of the glances before one answer."""

    glances: int = 0
    tokens: int = 0
    ms: float = 0.0
    flops: int = 0


@dataclass(frozen=True, slots=True)
class ServerReady:
    """A server can be asked the required questions from now on; its model may be another one."""


Outcome: TypeAlias = Event | ServerReady | EmbeddedQuestion | RefusedQuestion | Feedback | GlanceOutcome | IdleOutcome
"""Result of a server's message for the run."""


@dataclass(frozen=True, slots=True)
class TextAgreement:
    """Agreement of two texts. `same`: equal but for case, punctuation and spaces. `words`: share of equal words."""

    same: bool
    words: float


def text_agreement(text: str, other: str) -> TextAgreement:
    """Return how far two texts agree.

    The share is twice the number of words that match in order, divided by the number of words of both (Ratcliff and
    Obershelp's measure, as difflib has it); two texts without a word agree.
    """
    first = words_of(text)
    second = words_of(other)
    if not first and not second:
        return TextAgreement(True, 1.0)
    return TextAgreement(first == second, SequenceMatcher(None, first, second, autojunk=False).ratio())


def words_of(text: str) -> list[str]:
    """Return the words of a text without case and punctuation: `"It's 3.5 m!"` is `it's`, `3.5`, `m`."""
    return _WORDS.findall(text.casefold())


@dataclass(slots=True)
class AnswerRequest:
    """Packet that was or is to be sent, its question, and the state of its answer."""

    number: int
    packet: TokenPacket | FramePacket
    question: Question
    trigger: str
    checks: tuple[Check, ...] = ()
    """Watches whose questions are the checks of the question."""
    yes_no_reported: bool = False
    """True once the results of the checks were emitted."""
    shadow: FramePacket | None = None
    """The whole frame, if the answer is to be verified with it."""
    verifies: Answer | None = None
    """The answer that this request verifies."""
    entry: JournalEntry | None = None
    """That answer's record for the journal, which gets it afterwards."""
    sent_ns: int | None = None
    """Time when it was last sent."""
    turn_ns: int = 0
    """Wait for its turn."""
    first_text_ns: int | None = None
    text: str = ""
    """The answer so far; none of it is emitted while it may repeat the previous answer."""
    deltas: int = 0
    """Number of pieces of the text."""
    emitted: int = 0
    """Number of its first characters that were emitted."""
    losses: int = 0
    """Number of times that the server lost the request."""
    before_cut: bool = False
    """True if a new shot has begun since."""

    @property
    def stamp(self) -> FrameStamp:
        """Stamp of the request's frame."""
        return self.packet.stamp

    def restart(self) -> None:
        """Discard the received part of the answer, which is generated again from its beginning."""
        self.first_text_ns = None
        self.text = ""
        self.deltas = 0
        self.emitted = 0

    def emit_text(self) -> list[Outcome]:
        """Return the text that was not emitted yet, as an event, and mark it as emitted."""
        text = self.text[self.emitted :]
        self.emitted = len(self.text)
        event = AnswerDeltaEvent(answer=self.number, text=text, pts_s=self.stamp.media_ns / NS_PER_S)
        return [event] if text else []

    def to_yes_no_events(self, reply: YesNoReply, now_ns: int) -> list[YesNoResult]:
        """Return the results of the checks as events without verdicts, which watches add.

        Raises TransportError if there are more or fewer than were asked for.
        """
        questions = self.question.checks
        if len(reply.scores) != len(questions):
            expected = counted(len(questions), "check")
            raise TransportError(f"the answer server sent {counted(len(reply.scores), 'result')} of {expected}")
        scores = dict(zip(questions, reply.scores, strict=True))
        stamp = self.stamp
        timing = YesNoTiming(
            encode_ms=reply.work.encode_ms,
            prefill_ms=reply.work.prefill_ms,
            total_ms=(now_ns - stamp.capture_ns) / NS_PER_MS,
        )
        return [
            YesNoResult(
                watch=check.watch,
                frame_index=stamp.frame_index,
                pts_s=stamp.media_ns / NS_PER_S,
                trigger=check.trigger,
                question=check.question,
                yes=scores[check.question].yes,
                certain=scores[check.question].certain,
                holds=None,
                tokens_used=reply.work.tokens_used,
                tokens_total=self.packet.grid.tiles,
                kept_bytes=reply.work.kept_bytes,
                timing=timing,
            )
            for check in self.checks
        ]

    def to_shadow_event(
        self, reply: AnswerReply, schema: AnswerSchema | None = None, agree: float = 1.0
    ) -> ShadowCheck | None:
        """Return the comparison with the verified answer; None if the reply does not fit the schema. The answers differ
        if their likeness is less than `agree`."""
        answer = self.verifies
        full_text = reply.text
        if answer is None:
            return None
        if schema is not None:
            try:
                full_text = schema.readable(schema.fields_of(reply.text))
            except ValueError:
                return None
        agreement = text_agreement(answer.text, full_text)
        return ShadowCheck(
            answer=answer.answer,
            frame_index=answer.frame_index,
            pts_s=answer.pts_s,
            query=answer.query,
            text=answer.text,
            full_text=full_text,
            same=agreement.same,
            words=agreement.words,
            tokens_used=answer.tokens_used,
            tokens_full=reply.work.tokens_used,
            differs=(agreement.words if reply.same is None else reply.same) < agree,
            meaning=reply.same,
        )

    def to_cancelled_event(self, new: FrameStamp, by: str) -> AnswerCancelled:
        """Return the event that this answer is stale; `by` is the cause, `new` the first frame after it."""
        return AnswerCancelled(
            answer=self.number,
            frame_index=self.stamp.frame_index,
            pts_s=self.stamp.media_ns / NS_PER_S,
            trigger=self.trigger,
            text=self.text[: self.emitted],
            by=by,
            by_frame_index=new.frame_index,
            by_pts_s=new.media_ns / NS_PER_S,
        )

    def to_answer_event(
        self,
        reply: AnswerReply,
        now_ns: int,
        glance_costs: GlanceCosts | None = None,
        idle_costs: IdleCosts | None = None,
    ) -> Answer:
        """Return the answer as an event; latencies count from the capture of its frame.

        Args:
            reply: the server's reply.
            now_ns: monotonic time, in nanoseconds.
            glance_costs: the costs of the glances before it, whose operations count as its own.
            idle_costs: those of idle work since the answer before.
        """
        glance_costs = glance_costs or GlanceCosts()
        idle_costs = idle_costs or IdleCosts()
        stamp = self.stamp
        end_s = stamp.media_ns / NS_PER_S
        if reply.work.oldest_frame_ns is None:
            oldest_ns = stamp.media_ns
        else:
            oldest_ns = min(reply.work.oldest_frame_ns, stamp.media_ns)
        first_ns = self.first_text_ns or now_ns
        packet = self.packet
        if isinstance(packet, TokenPacket):
            new_tokens = len(packet.regions)
        else:
            new_tokens = packet.grid.tiles
        return Answer(
            answer=reply.answer,
            frame_index=stamp.frame_index,
            pts_s=end_s,
            start_s=oldest_ns / NS_PER_S,
            end_s=end_s,
            trigger=self.trigger,
            query=self.question.text,
            text=reply.text,
            tokens_used=reply.work.tokens_used,
            tokens_total=self.packet.grid.tiles,
            text_tokens=reply.work.text_tokens,
            frames=reply.work.frames,
            kept_bytes=reply.work.kept_bytes,
            flops=reply.work.flops + glance_costs.flops,
            full_flops=reply.work.full_flops,
            prefilled_tokens=reply.work.prefilled_tokens,
            # A server that lacked earlier frames has appended them as well, but they are not new to the group.
            appended_tokens=min(reply.work.appended_tokens, new_tokens),
            memory_tokens=reply.work.memory_tokens,
            idle_tokens=idle_costs.tokens,
            rebuilt=idle_costs.rebuilt,
            glances=glance_costs.glances,
            glance_tokens=glance_costs.tokens,
            before_cut=self.before_cut,
            timing=AnswerTiming(
                encode_ms=reply.work.encode_ms,
                prefill_ms=reply.work.prefill_ms,
                decode_ms=reply.work.decode_ms,
                glance_ms=glance_costs.ms,
                turn_ms=self.turn_ns / NS_PER_MS,
                idle_ms=idle_costs.ms,
                sent_ms=0.0 if self.sent_ns is None else (self.sent_ns - stamp.capture_ns) / NS_PER_MS,
                ttft_ms=(first_ns - stamp.capture_ns) / NS_PER_MS,
                total_ms=(now_ns - stamp.capture_ns) / NS_PER_MS,
            ),
        )


class AnswerHistory:
    """Answers of one client in the epoch of the newest: the `length` newest, to any question, and the last one.

    `same_above`: smallest probability at which the last answer to the same question is repeated; None to answer each
    question. `schema`: schema of the answers, which the model is shown as it wrote them. `spans_cuts`: the newest ones
    stay in another epoch.
    """

    def __init__(
        self,
        length: int,
        same_above: float | None,
        schema: AnswerSchema | None = None,
        *,
        spans_cuts: bool = False,
    ) -> None:
        self._same_above = same_above
        self._schema = schema
        self._spans_cuts = spans_cuts
        self._newest: deque[PastAnswer] = deque(maxlen=length)
        self._last: Answer | None = None
        self._epoch = 0

    @property
    def newest(self) -> tuple[PastAnswer, ...]:
        """Answers put before the next question, oldest first."""
        return tuple(self._newest)

    def begin(self, epoch: int) -> None:
        """Forget the answers about frames of other epochs than this one."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self._last = None
        if not self._spans_cuts:
            self._newest.clear()

    def add(self, answer: AnswerPoint, epoch: int) -> None:
        """Add an answer about a frame of this epoch; an AnswerUnchanged and an AnswerInvalid are ignored."""
        if isinstance(answer, Answer):
            self.begin(epoch)
            self._last = answer
            text = cut_to(printable(self._model_text(answer)), HISTORY_CHARS_MAX)
            self._newest.append(PastAnswer(round(answer.pts_s * NS_PER_S), text))

    def previous(self, query: str, epoch: int) -> PreviousAnswer | None:
        """Return the last answer if the next one may repeat it; None after a cut or to another question."""
        last = self._last
        if self._same_above is None or last is None or last.query != query or self._epoch != epoch:
            return None
        return PreviousAnswer(self._model_text(last), self._same_above)

    def event_of(
        self, answer: Answer, previous: PreviousAnswer | None, probability: float | None
    ) -> Answer | AnswerUnchanged:
        """Return the event of an answer: AnswerUnchanged if its text is exactly that of `previous`, else the answer
        itself."""
        last = self._last
        text = self._model_text(answer)
        if previous is None or last is None or text != previous.text:
            return answer
        return AnswerUnchanged(**structs.asdict(answer), since_s=last.pts_s, probability=probability)

    def _model_text(self, answer: Answer) -> str:
        """Return the text of an answer as the model writes it."""
        if self._schema is None or answer.fields is None:
            return answer.text
        return self._schema.text_of(answer.fields)


class RequestTracker:
    """The open request and the open glance, at most one of each: replies become outcomes, and entries of the journal.

    `request` and `glance` are the open ones, `next_number` is the number of the next answer. `lost_answers` and
    `lost_glances` count those lost with a server, or too late for their turn; `cancelled_answers` those that a cut made
    stale. `group` is the sent part of a group of pictures, `idle` the exchange of packets to read ahead, `history` the
    answers so far. Unusable feedback is an error among the outcomes; its answer stays valid.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._cancelled_number: int | None = None
        self._next_glance = 0
        self._glance_costs = GlanceCosts()
        self._last_glance: GlanceOutcome | None = None
        self.group = SentGroup(resends=options.resend_after_loss)
        self.idle = IdleExchange()
        self.history = AnswerHistory(
            options.history, options.same_above, options.schema, spans_cuts=options.history_spans_cuts
        )
        self._detections = DetectionReader(options.source_px)
        self.request: AnswerRequest | None = None
        self.glance: GlanceRequest | None = None
        self.next_number = 0
        self.lost_answers = self.lost_glances = 0
        self.cancelled_answers = 0

    @property
    def is_any_open(self) -> bool:
        """True while an answer or a glance is awaited."""
        return self.request is not None or self.glance is not None

    def recall(self, stamp: FrameStamp) -> list[Outcome]:
        """Return the outcomes of the answer about this frame if the journal holds it, else none."""
        journal = self._options.journal
        if journal is None:
            entry = None
        else:
            entry = journal.lookup(self.next_number, stamp.frame_index)
        if entry is None:
            return []
        self.next_number += 1
        answer = entry.answer
        self.history.add(answer, stamp.epoch)
        outcomes: list[Outcome] = [answer, *([] if entry.detections is None else [entry.detections])]
        if isinstance(answer, Answer):
            outcomes.insert(0, AnswerDeltaEvent(answer=answer.answer, text=answer.text, pts_s=answer.pts_s))
        if entry.feedback is not None:
            outcomes.append(dataclasses.replace(entry.feedback, stamp=stamp))
        if entry.check is None:
            return outcomes
        return [*outcomes, entry.check]

    def recall_glance(self, stamp: FrameStamp) -> list[Outcome] | None:
        """Return the outcome of the glance before the answer about this frame, if any; None if the journal does not
        hold that answer. The answer reports the costs of its glances."""
        journal = self._options.journal
        if journal is None:
            entry = None
        else:
            entry = journal.lookup(self.next_number, stamp.frame_index)
        if entry is None or entry.glance is None:
            return None if entry is None else []
        feedback = entry.glance.feedback
        if feedback is None:
            feedback = None
        else:
            feedback = dataclasses.replace(feedback, stamp=stamp)
        return [GlanceOutcome(entry.glance.event, stamp, feedback)]

    @property
    def recalls_next(self) -> bool:
        """True if the journal holds the next answer."""
        return self._options.journal is not None and self._options.journal.holds(self.next_number)

    def open(self, request: AnswerRequest) -> None:
        """Open a new request, with what the run adds to its question. The caller may change the image of a whole frame
        once this has returned."""
        packet = request.packet
        if isinstance(packet, FramePacket) and not self._write_snapshot(packet):
            request.packet = dataclasses.replace(packet, image=packet.image.copy())
        self.history.begin(packet.stamp.epoch)
        question = request.question
        if question.wants_answer:
            request.question = question = dataclasses.replace(question, history=self.history.newest)
        if question.wants_answer and request.trigger != SIDE:
            request.question = dataclasses.replace(
                question,
                previous=self.history.previous(question.text, packet.stamp.epoch),
                schema=None if self._options.schema is None else self._options.schema.text,
            )
        self.request = request
        self.next_number += question.wants_answer

    def open_glance(self, packet: TokenPacket, text: str, now_ns: int) -> None:
        """Open a new glance with this overview, for the question `text`."""
        self.glance = GlanceRequest(self._next_glance, packet, text, now_ns)
        self._next_glance += 1

    def drop(self) -> None:
        """Drop the open request, as its answer would be late, and the open glance, unless they are to be sent again."""
        if self._options.resend_after_loss:
            return
        if self.glance is not None:
            self.lost_glances += 1
            self.glance = None
        if self.request is not None:
            self.lost_answers += self.request.verifies is None
            self.request = None

    def on_lost(self, number: int) -> bool | None:
        """Handle an answer that the server lost: keep the request open if it is sent again, else drop it.

        Returns whether it stays open; None if it was cancelled.
        """
        request = self._request_of(number)
        if request is None:
            return None
        request.losses += 1
        if self._options.resend_after_loss and request.losses <= REPEATS_MAX:
            return True
        self.lost_answers += request.verifies is None
        self._write_entry(request.entry)
        self.request = None
        return False

    def cancel(self, new: FrameStamp, by: str) -> AnswerCancelled | None:
        """Drop the answer that is being generated; `by` is the cause, `new` the first frame after it. Returns the
        event.

        Returns None if no answer is being generated: a verification of another answer, and checks alone, go
        on. Later replies to a cancelled request are ignored.
        """
        request = self.request
        if request is None or not request.question.wants_answer or request.verifies is not None:
            return None
        self.request = None
        self._cancelled_number = request.number
        self.cancelled_answers += 1
        return request.to_cancelled_event(new, by)

    def on_delta(self, delta: AnswerDelta, now_ns: int) -> list[Outcome]:
        """Process a piece of the answer; no outcome if the answer only verifies another one, or was cancelled."""
        request = self._request_of(delta.answer)
        if request is None:
            return []
        request.deltas += 1
        if request.deltas > PIECES_MAX or len(request.text) + len(delta.text) > ANSWER_CHARS_MAX:
            raise TransportError(f"an answer has more than {PIECES_MAX} pieces or {ANSWER_CHARS_MAX} characters")
        if request.verifies is not None:
            return []
        request.text += delta.text
        request.first_text_ns = request.first_text_ns or now_ns
        if self._options.schema is not None:
            return []  # a part of it is no JSON, and the whole of it may not fit
        previous = request.question.previous
        may_repeat = previous is not None and previous.text.startswith(request.text)
        return [] if may_repeat else request.emit_text()

    def on_yes_no(self, reply: YesNoReply, envelope: Envelope, now_ns: int) -> list[Outcome | TransportError]:
        """Process the results of the checks. A repeated request is evaluated again, but reported once."""
        request = self._request_of(reply.answer)
        if request is None:
            return []
        events = request.to_yes_no_events(reply, now_ns)
        feedback = _feedback_or_error(reply, envelope, request.packet)
        if not request.question.wants_answer:
            self.request = None
        reported = request.yes_no_reported
        request.yes_no_reported = True
        return [*([] if reported else events), *([] if feedback is None else [feedback])]

    def on_answer(self, reply: AnswerReply, envelope: Envelope, now_ns: int) -> list[Outcome | TransportError]:
        """Process the complete answer. If it is to be verified, open a request with its whole frame."""
        request = self._request_of(reply.answer)
        if request is None:
            return []
        feedback = _feedback_or_error(reply, envelope, request.packet)
        self.request = None
        if request.verifies is not None:
            check = request.to_shadow_event(reply, self._options.schema, self._options.agree)
            self._write_entry(request.entry, check)
            if isinstance(feedback, TransportError):
                error = feedback
            else:
                error = None
            return [outcome for outcome in (check, error) if outcome is not None]
        glance = self._last_glance
        costs = self._glance_costs
        self._last_glance = None
        self._glance_costs = GlanceCosts()
        if request.trigger == SIDE:
            idle_costs = IdleCosts()
        else:
            idle_costs = self.idle.take_costs()
        answer = request.to_answer_event(reply, now_ns, costs, idle_costs)
        if answer.trigger == SIDE:
            return [outcome for outcome in (*request.emit_text(), answer, feedback) if outcome is not None]
        point: Answer | AnswerUnchanged | AnswerInvalid = answer
        if self._options.schema is not None:
            point = apply_schema(answer, self._options.schema)
            request.text = point.text
        if isinstance(point, Answer):
            point = self.history.event_of(point, request.question.previous, reply.same)
        self.history.add(point, request.stamp.epoch)
        detection_events: list[Event] = []
        if isinstance(point, Answer) and GROUNDED.search(answer.text):
            detection_events = self._detections.read(answer, reply.extent, request.packet.grid)
        if isinstance(feedback, Feedback):
            usable = feedback
        else:
            usable = None
        if glance is None:
            journal_glance = None
        else:
            journal_glance = JournalGlance(glance.event, glance.feedback)
        detections = next((event for event in detection_events if isinstance(event, Detections)), None)
        entry = JournalEntry(point, usable, journal_glance, detections)
        if isinstance(point, Answer) and request.shadow is not None:
            self._write_snapshot(request.shadow)
            compared = point.text if self._options.asks_meaning else None
            question = dataclasses.replace(request.question, checks=(), previous=None, compared=compared)
            self.request = AnswerRequest(
                point.answer, request.shadow, question, point.trigger, verifies=point, entry=entry
            )
        else:
            self._write_entry(entry)
        if isinstance(point, Answer):
            text_events = request.emit_text()
        else:
            text_events = []
        outcomes: list[Outcome | TransportError] = [*text_events, point, *detection_events]
        if feedback is None:
            return outcomes
        return [*outcomes, feedback]

    def on_glance(self, reply: GlanceReply, envelope: Envelope, now_ns: int) -> list[Outcome | TransportError]:
        """Process the reply to the open glance. Raises TransportError if it is a reply to another one."""
        glance = self.glance
        if glance is None or glance.number != reply.glance:
            raise TransportError(f"the answer server refers to glance {reply.glance}, which was not asked for")
        self.glance = None
        feedback = _feedback_or_error(reply, envelope, glance.packet)
        if isinstance(feedback, Feedback):
            usable = feedback
        else:
            usable = None
        ms = (now_ns - glance.sent_ns) / NS_PER_MS
        costs = self._glance_costs
        self._glance_costs = GlanceCosts(
            costs.glances + 1, costs.tokens + reply.work.tokens_used, costs.ms + ms, costs.flops + reply.work.flops
        )
        self._last_glance = GlanceOutcome(glance.to_event(reply, ms), glance.packet.stamp, usable)
        if isinstance(feedback, TransportError):
            return [self._last_glance, feedback]
        return [self._last_glance]

    def is_open(self, number: int) -> bool:
        """Return whether the answer of this number is awaited."""
        return self.request is not None and self.request.number == number

    def _write_entry(self, entry: JournalEntry | None, check: ShadowCheck | None = None) -> None:
        """Write an answer to the journal, if there is one, with its shadow check: a run that is killed between the two
        gives both again."""
        if entry is not None and self._options.journal is not None:
            self._options.journal.append(entry.answer, entry.feedback, entry.glance, entry.detections, check)

    def _write_snapshot(self, packet: FramePacket) -> bool:
        """Write the image of a whole frame to the snapshot, if there is one."""
        if self._options.snapshot is not None:
            self._options.snapshot.write(packet.image)
        return self._options.snapshot is not None

    def _request_of(self, number: int) -> AnswerRequest | None:
        """Return the open request of this number; None if it was cancelled. Raises TransportError otherwise."""
        if self.is_open(number):
            return self.request
        if number == self._cancelled_number:
            return None
        raise TransportError(f"the answer server refers to answer {number}, which was not asked for")


def apply_schema(answer: Answer, schema: AnswerSchema) -> Answer | AnswerInvalid:
    """Return an answer with its fields, and its text for people; AnswerInvalid if it does not fit the schema."""
    try:
        fields = schema.fields_of(answer.text)
    except ValueError as error:
        reason = cut_to(printable(str(error)), REASON_CHARS_MAX)
        return AnswerInvalid(**structs.asdict(structs.replace(answer, text="")), reason=reason)
    return structs.replace(answer, text=schema.readable(fields), fields=fields)


def _feedback_or_error(
    reply: AnswerReply | YesNoReply | GlanceReply, envelope: Envelope, packet: TokenPacket | FramePacket
) -> Feedback | TransportError | None:
    """Return a reply's feedback, None if it has none, or why it cannot be used."""
    try:
        return feedback_on(reply, envelope.parts, packet.stamp, packet.grid)
    except TransportError as error:
        return error
