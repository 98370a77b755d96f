"""Requests to the answer server: the answer and the glance in flight, and the outcomes of their replies.

A glance comes before an answer for which no feedback is available yet: the model reads a coarse overview of the frame
with the question, and its attention is the feedback by which the frame's tokens are then chosen.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TypeAlias

from arr_coc.errors import counted
from arr_coc.types import NS_PER_MS, NS_PER_S, Feedback, FramePacket, FrameStamp, Question, TokenPacket
from stream.answer.embeddings import EmbeddedQuestion, RefusedQuestion
from stream.answer.filters import AnswerFilter, FinishedAnswer, PriorGlance, RecalledAnswer
from stream.answer.idle import IdleCosts, IdleExchange, IdleOutcome
from stream.answer.memory import SentGroup
from stream.answer.triggers import Check
from stream.errors import TransportError
from stream.events import (
    Answer,
    AnswerCancelled,
    AnswerDeltaEvent,
    AnswerTiming,
    Event,
    Glance,
    GlanceTiming,
    YesNoResult,
    YesNoTiming,
)
from stream.protocol.buffers import SharedFrameWriter
from stream.protocol.codec import feedback_on
from stream.protocol.device_pixels import PixelSender
from stream.protocol.messages import AnswerDelta, AnswerReply, GlanceReply, YesNoReply
from stream.transport import Envelope
from stream.untrusted import ANSWER_CHARS_MAX, PIECES_MAX

REPEATS_MAX = 2
"""Times that a lost request is sent again with `resend_after_loss`."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a client of the answer server."""

    encode: str = "sparse"
    """Encoding of the packets."""
    watches: tuple[str, ...] = ()
    """Questions that may be evaluated with the packets."""
    schema: str | None = None
    """Schema of the answers, which a server has to accept."""
    filters: tuple[AnswerFilter, ...] = ()
    """What the run's features make of questions and answers, in order."""
    reconnect: bool = False
    """Look for another server after a loss; otherwise the run ends."""
    resend_after_loss: bool = False
    """Send the open request to that server again; otherwise drop its answer, which would be late."""
    persistent: bool = False
    """Pause after consecutive failures instead of ending the run."""
    snapshot: SharedFrameWriter | None = None
    """Memory shared with the server, for whole frames."""
    pixels: PixelSender | None = None
    """Device memory shared with the server, for the pixels of tokens."""


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


@dataclass(slots=True)
class AnswerRequest:
    """Packet that was or is to be sent, its question, and the state of its answer."""

    number: int
    packet: TokenPacket | FramePacket
    question: Question
    trigger: str
    checks: tuple[Check, ...] = ()
    """Watches whose questions are the checks of the question."""
    full_frame: FramePacket | None = None
    """The whole frame, for a question that a filter asks after the answer."""
    yes_no_reported: bool = False
    """True once the results of the checks were emitted."""
    is_aside: bool = False
    """A feature asks it between the run's own answers: the filters do not see its answer."""
    follows: FinishedAnswer | None = None
    """The answer after which a filter asks this question; its answer is not shown."""
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
            looped=reply.work.looped,
            escalated=reply.work.escalated,
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


class RequestTracker:
    """The open request and the open glance, at most one of each; replies become outcomes.

    `request` and `glance` are the open ones, `next_number` is the number of the next answer. `lost_answers` and
    `lost_glances` count those lost with a server, or too late for their turn; `cancelled_answers` those that a cut made
    stale. `group` is the sent part of a group of pictures, `idle` the exchange of packets to read ahead. Unusable
    feedback is an error among the outcomes; its answer stays valid.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._shows_whole = any(each.shows_whole for each in options.filters)
        self._epoch = 0
        self._cancelled_number: int | None = None
        self._next_glance = 0
        self._glance_costs = GlanceCosts()
        self._last_glance: PriorGlance | None = None
        self.group = SentGroup(resends=options.resend_after_loss)
        self.idle = IdleExchange()
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
        """Return the outcomes of the answer about this frame if an earlier run was given it, else none."""
        recalled = self._recalled(stamp)
        if recalled is None:
            return []
        self.next_number += 1
        self._begin(stamp.epoch)
        for each in self._options.filters:
            each.on_recall(recalled, stamp)
        answer = recalled.event
        outcomes: list[Outcome] = []
        if isinstance(answer, Answer):
            outcomes.append(AnswerDeltaEvent(answer=answer.answer, text=answer.text, pts_s=answer.pts_s))
        outcomes += [answer, *recalled.events]
        if recalled.feedback is not None:
            outcomes.append(dataclasses.replace(recalled.feedback, stamp=stamp))
        return outcomes

    def recall_glance(self, stamp: FrameStamp) -> list[Outcome] | None:
        """Return the outcome of the glance before the answer about this frame, if any; None if no earlier run was given
        that answer. The answer reports the costs of its glances."""
        recalled = self._recalled(stamp)
        if recalled is None or recalled.glance is None:
            return None if recalled is None else []
        feedback = recalled.glance.feedback
        if feedback is not None:
            feedback = dataclasses.replace(feedback, stamp=stamp)
        return [GlanceOutcome(recalled.glance.event, stamp, feedback)]

    @property
    def recalls_next(self) -> bool:
        """True if an earlier run was given the next answer."""
        return any(each.recalls(self.next_number) for each in self._options.filters)

    def _recalled(self, stamp: FrameStamp) -> RecalledAnswer | None:
        recalls = (each.recall(self.next_number, stamp) for each in self._options.filters)
        return next((recalled for recalled in recalls if recalled is not None), None)

    def wants_full_frame(self) -> bool:
        """Return True if a filter wants the whole frame beside the next answer's packet. Called once an answer."""
        return any([each.wants_full_frame() for each in self._options.filters])

    def open(self, request: AnswerRequest) -> None:
        """Open a new request, with what the filters add to its question. The caller may change the image of a whole
        frame once this has returned."""
        packet = request.packet
        if isinstance(packet, FramePacket) and not self._write_snapshot(packet):
            request.packet = dataclasses.replace(packet, image=packet.image.copy())
        self._begin(packet.stamp.epoch)
        for each in self._options.filters:
            request.question = each.before_ask(request.question, packet.stamp, aside=request.is_aside)
        self.request = request
        self.next_number += request.question.wants_answer

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
            self._lose(self.request)

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
        self._lose(request)
        return False

    def cancel(self, new: FrameStamp, by: str) -> AnswerCancelled | None:
        """Drop the answer that is being generated; `by` is the cause, `new` the first frame after it. Returns the
        event.

        Returns None if no answer is being generated: a question that follows another answer, and checks alone, go
        on. Later replies to a cancelled request are ignored.
        """
        request = self.request
        if request is None or not request.question.wants_answer or request.follows is not None:
            return None
        self.request = None
        self._cancelled_number = request.number
        self.cancelled_answers += 1
        return request.to_cancelled_event(new, by)

    def on_delta(self, delta: AnswerDelta, now_ns: int) -> list[Outcome]:
        """Process a piece of the answer; no outcome if the answer is not shown, or was cancelled."""
        request = self._request_of(delta.answer)
        if request is None:
            return []
        request.deltas += 1
        if request.deltas > PIECES_MAX or len(request.text) + len(delta.text) > ANSWER_CHARS_MAX:
            raise TransportError(f"an answer has more than {PIECES_MAX} pieces or {ANSWER_CHARS_MAX} characters")
        if request.follows is not None:
            return []
        request.text += delta.text
        request.first_text_ns = request.first_text_ns or now_ns
        filters = self._options.filters
        if self._shows_whole or any(each.holds_back(request.question, request.text) for each in filters):
            return []
        return request.emit_text()

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
        """Process the complete answer: the filters change it, and one of them may ask a question after it."""
        request = self._request_of(reply.answer)
        if request is None:
            return []
        self.request = None
        feedback = _feedback_or_error(reply, envelope, request.packet)
        if request.follows is not None:
            events = self._end(request.follows, reply)
            return [*events, feedback] if isinstance(feedback, TransportError) else list(events)
        glance = self._last_glance
        costs = self._glance_costs
        self._last_glance = None
        self._glance_costs = GlanceCosts()
        if request.is_aside:
            answer = request.to_answer_event(reply, now_ns, costs)
            return [outcome for outcome in (*request.emit_text(), answer, feedback) if outcome is not None]
        finished = FinishedAnswer(
            request.question,
            request.packet,
            reply,
            request.to_answer_event(reply, now_ns, costs, self.idle.take_costs()),
            feedback=feedback if isinstance(feedback, Feedback) else None,
            glance=glance,
            full_frame=request.full_frame,
        )
        for each in self._options.filters:
            each.on_answer(finished)
        if finished.follow_up is None:
            self._end(finished)
        else:
            self._open_follow_up(request, finished)
        outcomes: list[Outcome | TransportError] = []
        if isinstance(finished.event, Answer):
            if self._shows_whole:
                request.text = finished.event.text
            outcomes += request.emit_text()
        outcomes += [finished.event, *finished.events]
        return outcomes if feedback is None else [*outcomes, feedback]

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
        event = glance.to_event(reply, ms)
        self._last_glance = PriorGlance(event, usable)
        outcome = GlanceOutcome(event, glance.packet.stamp, usable)
        if isinstance(feedback, TransportError):
            return [outcome, feedback]
        return [outcome]

    def is_open(self, number: int) -> bool:
        """Return whether the answer of this number is awaited."""
        return self.request is not None and self.request.number == number

    def _begin(self, epoch: int) -> None:
        """Let the filters forget another shot than that of this epoch."""
        if epoch != self._epoch:
            self._epoch = epoch
            for each in self._options.filters:
                each.begin_shot()

    def _lose(self, request: AnswerRequest) -> None:
        """Close the open request, whose answer will not come."""
        self.request = None
        if request.follows is None:
            self.lost_answers += 1
        else:
            self._end(request.follows)

    def _open_follow_up(self, request: AnswerRequest, finished: FinishedAnswer) -> None:
        """Open the question of a filter that follows an answer."""
        follow_up = finished.follow_up
        assert follow_up is not None
        self._write_snapshot(follow_up.packet)
        self.request = AnswerRequest(
            request.number, follow_up.packet, follow_up.question, request.trigger, follows=finished
        )

    def _end(self, finished: FinishedAnswer, reply: AnswerReply | None = None) -> list[Event]:
        """Let the filters note an answer of which nothing follows; return the events of the reply to its follow-up."""
        events: list[Event] = []
        if finished.follow_up is not None and reply is not None:
            events = finished.follow_up.asker.on_follow_up(finished, reply)
            finished.events += events
        for each in self._options.filters:
            each.on_end(finished)
        return events

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


def _feedback_or_error(
    reply: AnswerReply | YesNoReply | GlanceReply, envelope: Envelope, packet: TokenPacket | FramePacket
) -> Feedback | TransportError | None:
    """Return a reply's feedback, None if it has none, or why it cannot be used."""
    try:
        return feedback_on(reply, envelope.parts, packet.stamp, packet.grid)
    except TransportError as error:
        return error
