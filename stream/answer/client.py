"""Client side of the answer protocol as a state machine without I/O: questions, turns, packets, glances and replies.

`stream/answer/connection.py` sends the messages of its outbox, and passes it those of the server.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from arr_coc.errors import ArrCocError, OptionError, StoreError
from arr_coc.types import FramePacket, FrameStamp, Question, TokenPacket
from stream.answer.embeddings import EmbeddedQuestion, QuestionEmbeddings, QuestionKey, RefusedQuestion
from stream.answer.request import AnswerRequest, ClientOptions, Outcome, RequestTracker, ServerReady
from stream.answer.triggers import Check
from stream.control import remote_error
from stream.errors import StageDied, StreamError, TransportError
from stream.events import ANSWERS_LOST, PEER_MISBEHAVES, AnswerCancelled, Notice
from stream.protocol.codec import embedding_of, frame_message, glance_message, idle_message, token_message
from stream.protocol.device_pixels import PixelSender
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    Connect,
    Disconnect,
    Embedded,
    ErrorReply,
    FramePacketMessage,
    GlanceReply,
    IdleGrant,
    IdlePass,
    IdleReply,
    KeepAlive,
    Message,
    PixelPlace,
    RequestLost,
    ServerHello,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    YesNoReply,
)
from stream.transport import Envelope
from stream.untrusted import MISDEEDS_MAX, REASON_CHARS_MAX, cut_to

UNREADABLE_MAX = 3
"""Number of unusable replies in a row that make the server fail; after fewer, the answer is repeated or dropped."""

MODEL_NOTICE = "model-notice"
"""Code of the notice in which a model reports something about itself."""

PIXELS_COPIED = "device-pixels-copied"
"""Code of the notice that pixels do not stay on their device between the processes."""

PIXELS_REASON = "pixels go to the model by way of host memory: {reason}; --single-process keeps them on the GPU"


class ClientPhase(Enum):
    """State of a client towards its answer server."""

    CONNECTING = auto()
    """The server has not named its model, or not embedded the required questions yet."""
    READY = auto()
    TURN_REQUESTED = auto()
    TURN_GRANTED = auto()
    GLANCING = auto()
    """An overview was sent and its reply is awaited; the turn continues."""
    IN_FLIGHT = auto()
    """A packet was sent and its answer is awaited."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Sign that the server works. `answered`: it answered; otherwise it read an overview, or lost one request."""

    answered: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of the server. `error`: the error that it reported or that its hello causes; None without one."""

    reason: str
    error: ArrCocError | StreamError | None = None


Action: TypeAlias = Outcome | Progress | Failure | KeepAlive
"""Result of a message: outcomes are for the run, the others (such as the server's load) for the connection."""


class AnswerClient:
    """State of one client of the answer protocol, with one server after another; without I/O, clock or thread.

    `receive` processes a message and returns the resulting actions. `outbox` holds the messages to send, in order.
    Transitions by phase and message:

    | phase          | ServerHello | Embedded         | TurnGrant              | TurnExpired    | GlanceReply  | reply |
    | -------------- | ----------- | ---------------- | ---------------------- | -------------- | ------------ | ----- |
    | CONNECTING     | kept, once  | READY, once all  | refused                | ignored        | refused      | *     |
    | READY          | refused     | kept             | TURN_GRANTED           | ignored        | refused      | *     |
    | TURN_REQUESTED | refused     | kept             | TURN_GRANTED, or sends | ignored        | refused      | *     |
    | TURN_GRANTED   | refused     | kept             | TURN_GRANTED, anew     | ignored        | refused      | *     |
    | GLANCING       | refused     | kept             | refused                | READY, dropped | TURN_GRANTED | *     |
    | IN_FLIGHT      | refused     | kept             | refused                | READY, dropped | refused      | READY |

    Other transitions: `request_turn` from READY to TURN_REQUESTED, `send_glance` from TURN_GRANTED to GLANCING,
    `send_request` from TURN_GRANTED to IN_FLIGHT, `connect` from any to CONNECTING. A reply (AnswerDelta, YesNoReply,
    AnswerReply) belongs to the open request in any phase (*); the last one ends it. After TurnExpired or a loss the
    request or glance is dropped, or, with `resend_after_loss`, stays open, requests a turn as soon as the phase is
    READY, and is sent with the next TurnGrant; so it is after RequestLost, at most REPEATS_MAX times. ErrorReply is a
    failure. Beside the phases, `requests.idle` is the exchange of packets to read ahead, which
    `request_turn` ends.
    `embeddings` are the questions that the server can be asked. A refused message is dropped, counted in
    `refused_messages`, and reported once. If the reply to a required question is refused, the server has failed.
    """

    def __init__(self, query: str, options: ClientOptions) -> None:
        self.options = options
        self.embeddings = QuestionEmbeddings(query, options.watches, options.schema)
        self._refused_in_row = self._unreadable_in_row = 0
        self._pixels_reported = False
        self._actions: list[Action] = []
        self.refused_messages = 0
        self.keeps_group = False
        """True if the server keeps earlier frames of this shot, which another server would lack."""
        self.has_moved = False
        """True if the client moved to its server without a loss."""
        self.requests = RequestTracker(options)
        self.outbox: deque[tuple[Message, list[npt.NDArray[Any]]]] = deque()
        self.phase = ClientPhase.CONNECTING
        self.hello: ServerHello | None = None

    def connect(self, server: str, after: Literal["loss", "move"] | None = None) -> None:
        """Start over with the server at this address: after a loss, after a move without loss, or (None) because the
        previous server never admitted this client."""
        if after == "loss":
            self.requests.drop()
        if after is not None:
            self.has_moved = after == "move"
        self._server = server
        self.phase = ClientPhase.CONNECTING
        self.hello = None
        self.requests.idle.restart()
        self._turn = self._turn_ns = self._turn_requested_ns = 0
        pixels_at: PixelPlace | None = None
        if self.options.pixels is not None:
            try:
                pixels_at = self.options.pixels.offer()
            except StoreError as error:
                self._report_copies(str(error))
        self.outbox.clear()
        self._send(Connect(pixels_at=pixels_at))
        for message in self.embeddings.restart():
            self._send(message)

    @property
    def ready(self) -> bool:
        """True once the server has loaded its model and embedded the required questions."""
        return self.phase is not ClientPhase.CONNECTING

    @property
    def may_send(self) -> bool:
        """True if a turn was granted for the next request."""
        return self.phase is ClientPhase.TURN_GRANTED

    @property
    def busy(self) -> bool:
        """True while an answer or a glance is awaited."""
        return self.requests.is_any_open

    @property
    def awaits_server(self) -> bool:
        """True while a turn, a glance or an answer is awaited from a ready server."""
        return self.ready and (self.busy or self.phase is ClientPhase.TURN_REQUESTED or self.requests.idle.is_open)

    def request_turn(self, now_ns: int) -> None:
        """Request a turn, once, if the server is ready."""
        if self.phase is ClientPhase.READY:
            self.requests.idle.end()
            self.phase = ClientPhase.TURN_REQUESTED
            self._turn_requested_ns = now_ns
            self._send(TurnRequest())

    def send_idle(self, packet: TokenPacket | None, *, is_beside: bool = False) -> None:
        """Send a packet to read ahead in the granted idle exchange, or, with None, say that there is none.

        `is_beside`: it is read beside others, which may be requested at once.
        """
        idle = self.requests.idle
        if packet is None:
            idle.end()
            self._send(IdlePass())
            return
        earlier_packets = self.requests.group.add(packet)
        place = _place_of((*earlier_packets, packet), self.options.pixels, self.hello)
        idle.send(is_beside=is_beside)
        self._send(*idle_message(idle.grant.number, packet, pixels_at=place, earlier_packets=earlier_packets))

    def send_glance(self, packet: TokenPacket, text: str, now_ns: int) -> None:
        """Send an overview for the question `text` in the granted turn, which continues after the reply."""
        assert self.may_send
        self.requests.open_glance(packet, text, now_ns)
        self._send_open(now_ns)

    def send_request(
        self,
        packet: TokenPacket | FramePacket,
        question: Question,
        trigger: str,
        now_ns: int,
        *,
        checks: tuple[Check, ...] = (),
        full_frame: FramePacket | None = None,
        is_aside: bool = False,
    ) -> None:
        """Send a packet in the granted turn. The caller may change a FramePacket's image once this has returned.

        Args:
            packet: packet of the frame.
            question: question about it, to which the filters of the run add.
            trigger: reason for the request.
            now_ns: monotonic time, in nanoseconds.
            checks: checks of watches, whose questions are those of `question`.
            full_frame: the whole frame, with a separate image, for a question that a filter asks in another turn
                after the answer.
            is_aside: a feature asks it between the run's own answers.
        """
        assert self.may_send
        number = self.requests.next_number
        self.requests.open(AnswerRequest(number, packet, question, trigger, checks, full_frame, is_aside=is_aside))
        self._send_open(now_ns)

    def cancel_answer(self, new: FrameStamp, by: str = "cut") -> AnswerCancelled | None:
        """Drop the answer that is being generated: `by` is the cause, `new` the first frame after that.

        Returns the event that reports it; None if no answer was being generated. A turn may be requested at once.
        """
        event = self.requests.cancel(new, by)
        if event is not None:
            self._send(Cancel())
            self._release_turn()
        return event

    def embed(self, key: QuestionKey) -> EmbeddedQuestion | None:
        """Return a question that the server can be asked, or ask for its embedding: an EmbeddedQuestion or
        RefusedQuestion follows."""
        embedded = self.embeddings.get(key)
        if embedded is None and (message := self.embeddings.ask(key)) is not None:
            self._send(message)
        return embedded

    def leave(self, *, cancel: bool = False) -> None:
        """Announce the end of requests; with `cancel`, cancel the open answer first."""
        if cancel:
            self._send(Cancel())
        self._send(Disconnect())

    def on_cut(self) -> None:
        """Note that a new shot has begun: frames that the server keeps are obsolete, and an answer in flight is about
        the previous shot."""
        self.keeps_group = False
        if self.requests.request is not None:
            self.requests.request.before_cut = True

    def receive(self, arrival: Envelope | TransportError, now_ns: int) -> list[Action]:
        """Process a message, or the error of an unreadable one; return the actions, in order."""
        request = self.requests.request
        if isinstance(arrival, TransportError):
            self._refuse(arrival, spoils_answer=self.ready and self.busy)
            if not self.ready:
                self._actions.append(Failure(f"its first messages cannot be used: {arrival}"))
        else:
            try:
                self._dispatch(arrival, now_ns)
            except TransportError as error:
                self._refuse(error)
        if self.phase is ClientPhase.IN_FLIGHT and self.requests.request is not request:
            self.phase = ClientPhase.READY  # it has ended; the open one, if any, follows its answer
        if self.busy:
            self.request_turn(now_ns)
        actions = self._actions
        self._actions = []
        return actions

    def _dispatch(self, envelope: Envelope, now_ns: int) -> None:
        """Process one message. Raises TransportError for one that a server may not send."""
        match envelope.message:
            case TurnGrant() as message:
                self._on_turn(message, now_ns)
            case TurnExpired() as message:
                # A TurnExpired of an earlier turn concerns a request that is no longer open.
                if self.phase in (ClientPhase.GLANCING, ClientPhase.IN_FLIGHT) and message.turn == self._turn:
                    self.requests.drop()
                    self._release_turn()
            case AnswerDelta() as message:
                self._actions += self.requests.on_delta(message, now_ns)
            case YesNoReply() as message:
                self._take(self.requests.on_yes_no(message, envelope, now_ns), message.notice)
            case AnswerReply() as message:
                self._on_answer(message, envelope, now_ns)
            case GlanceReply() as message:
                self._on_glance(message, envelope, now_ns)
            case RequestLost() as message:
                self._on_request_lost(message)
            case Embedded() as message:
                self._on_embedded(message, envelope)
            case ServerHello() as message:
                if self.hello is not None:
                    raise TransportError("it sends its hello twice")
                self.hello = message
                if (reason := self._objection(message)) is not None:
                    self._actions.append(Failure(reason, OptionError(reason)))
                if message.pixels_refused:
                    self._report_copies(message.pixels_refused)
            case ErrorReply() as message:
                error = remote_error(message.error, message.message)
                self._actions.append(Failure(message.message, error or StageDied("answer", message.message)))
            case KeepAlive() as message:
                self._actions.append(message)
            case IdleGrant() as message:
                self.requests.idle.on_grant(message)
                self.requests.group.server_place = message.kept
            case IdleReply() as message:
                self._actions.append(self.requests.idle.on_reply(message))
                self.requests.group.server_place = message.kept
            case message:
                raise TransportError(f"the answer server sent a message of the wrong kind, {type(message).__name__}")

    def _on_turn(self, message: TurnGrant, now_ns: int) -> None:
        if self.phase in (ClientPhase.CONNECTING, ClientPhase.GLANCING, ClientPhase.IN_FLIGHT):
            raise TransportError("it grants a turn that was not requested")
        if self.phase is ClientPhase.TURN_REQUESTED:
            self._turn_ns = now_ns - self._turn_requested_ns
        self.phase, self._turn, self.requests.group.server_place = ClientPhase.TURN_GRANTED, message.turn, message.kept
        self._send_open(now_ns)

    def _on_answer(self, message: AnswerReply, envelope: Envelope, now_ns: int) -> None:
        self._take(self.requests.on_answer(message, envelope, now_ns), message.notice)
        self.keeps_group = message.work.frames > 1

    def _on_glance(self, message: GlanceReply, envelope: Envelope, now_ns: int) -> None:
        """Process the reply to an overview; the turn continues."""
        if self.phase is not ClientPhase.GLANCING:
            raise TransportError("it looked at an overview that was not sent")
        self._take(self.requests.on_glance(message, envelope, now_ns), answered=False)
        self.phase = ClientPhase.TURN_GRANTED

    def _on_request_lost(self, message: RequestLost) -> None:
        """Report an answer that the server lost; the server itself still works."""
        resends = self.requests.on_lost(message.answer)
        if resends is None:
            return
        self._release_turn()
        if resends:
            next_step = "asking again"
        else:
            next_step = "going on with the newest frame"
        event = Notice(code=ANSWERS_LOST, message=f"an answer was lost: {message.reason}; {next_step}")
        self._take([event], answered=False)

    def _take(self, outcomes: Sequence[Outcome | TransportError], notice: str = "", *, answered: bool = True) -> None:
        """Pass on the outcomes of a reply and the model's notice, and note that the server works. Unusable feedback
        counts as an invalid message."""
        self._refused_in_row = self._unreadable_in_row = 0
        self._actions.append(Progress(answered))
        for outcome in outcomes:
            if isinstance(outcome, TransportError):
                self._refuse(outcome)
            else:
                self._actions.append(outcome)
        if notice:
            self._actions.append(Notice(code=MODEL_NOTICE, message=notice))

    def _objection(self, hello: ServerHello) -> str | None:
        """Return why this run cannot be answered by a server; None if it can."""
        encode = self.options.encode
        if hello.encode not in ("", encode):
            return (
                f"the answer server encodes {hello.encode}, not {encode}; give --encode {hello.encode} here, or start "
                f"it with --encode {encode}"
            )
        return self.requests.group.objection(hello.memory_tokens)

    def _on_embedded(self, message: Embedded, envelope: Envelope) -> None:
        """Note that a question can be asked, or was refused. The client is ready with the last one that is required."""
        key = QuestionKey(message.text, message.is_check)
        if not self.embeddings.settle(key):
            raise TransportError("it embeds a question that was not asked for")
        is_required = not self.ready and key in self.embeddings.required
        if message.error is not None and is_required:
            error = remote_error(message.error, message.reason)
            self._actions.append(Failure(message.reason, error or StageDied("answer", message.reason)))
            return
        if message.error is not None:
            self._actions.append(RefusedQuestion(key, message.reason))
            return
        try:
            if self.hello is None:
                raise TransportError("the answer server embedded a question before it named its model")
            embedding = embedding_of(message, envelope.parts)
        except TransportError as unreadable:
            # The reply comes once: without it, the question cannot be asked.
            self._refuse(unreadable)
            if is_required:
                self._actions.append(Failure(f"its reply to the question cannot be used: {unreadable}"))
            else:
                problem = f"the answer server's reply to it cannot be used: {unreadable}"
                self._actions.append(RefusedQuestion(key, problem))
            return
        embedded = EmbeddedQuestion(key, embedding, message.unseen_words)
        self.embeddings.add(embedded)
        if self.ready:
            self._actions.append(embedded)
        elif self.embeddings.is_complete:
            self.phase = ClientPhase.READY
            self._actions += [ServerReady(), *self.embeddings.others]

    def _send(self, message: Message, arrays: list[npt.NDArray[Any]] | None = None) -> None:
        self.outbox.append((message, arrays or []))

    def _send_open(self, now_ns: int) -> None:
        """Send the open glance or request in the granted turn; a whole frame may be in the snapshot."""
        glance = self.requests.glance
        request = self.requests.request
        open_request = request if glance is None else glance
        if open_request is None:
            return
        packet = open_request.packet
        earlier_packets = list[TokenPacket]()
        place = None
        if isinstance(packet, TokenPacket):
            earlier_packets = self.requests.group.add(packet)
            place = _place_of((*earlier_packets, packet), self.options.pixels, self.hello)
        if glance is not None:
            self.phase = ClientPhase.GLANCING
            self._send(
                *glance_message(
                    glance.number,
                    self._turn,
                    glance.packet,
                    glance.text,
                    pixels_at=place,
                    earlier_packets=earlier_packets,
                )
            )
            return
        assert request is not None
        request.restart()
        request.sent_ns = now_ns
        request.turn_ns = self._turn_ns
        self.phase = ClientPhase.IN_FLIGHT
        number = request.number
        question = dataclasses.replace(request.question, encode=self.options.encode)
        message: TokenPacketMessage | FramePacketMessage
        if isinstance(packet, TokenPacket):
            message, arrays = token_message(
                number, self._turn, packet, question, pixels_at=place, earlier_packets=earlier_packets
            )
        else:
            in_snapshot = self.options.snapshot is not None
            message, arrays = frame_message(number, self._turn, packet, question, in_snapshot=in_snapshot)
        self._send(message, arrays)

    def _release_turn(self) -> None:
        """Return to READY if a turn was used or requested for a request that has ended."""
        if self.phase in (ClientPhase.GLANCING, ClientPhase.IN_FLIGHT, ClientPhase.TURN_REQUESTED):
            self.phase = ClientPhase.READY

    def _report_copies(self, reason: str) -> None:
        """Report, once, why pixels do not stay on their device."""
        if not self._pixels_reported:
            self._pixels_reported = True
            self._actions.append(Notice(code=PIXELS_COPIED, message=PIXELS_REASON.format(reason=reason)))

    def _refuse(self, error: TransportError, *, spoils_answer: bool = False) -> None:
        """Count an invalid message, and report the first one; a server that sends only invalid ones has failed.

        `spoils_answer`: the message may have ended the open answer or glance, which is requested again or dropped, a
        few times.
        """
        self.refused_messages += 1
        self._refused_in_row += 1
        if self.refused_messages == 1:
            message = f"{self._server} sent invalid messages, which are dropped: {error}"
            self._actions.append(Notice(code=PEER_MISBEHAVES, message=cut_to(message, REASON_CHARS_MAX)))
        if self._refused_in_row >= MISDEEDS_MAX:
            self._refused_in_row = 0
            self._actions.append(Failure(f"{MISDEEDS_MAX} messages in a row were invalid; the last: {error}"))
        elif spoils_answer:
            self._unreadable_in_row += 1
            if self._unreadable_in_row >= UNREADABLE_MAX:
                self._unreadable_in_row = 0
                self._actions.append(Failure(str(error)))
            else:
                self.requests.drop()
                self._release_turn()


def may_read_ahead(client: AnswerClient) -> bool:
    """Return whether a client's server takes idle packets, and nothing else is under way."""
    is_quiet = client.phase is ClientPhase.READY and not (client.busy or client.embeddings.is_any_awaited)
    return is_quiet and not client.requests.idle.is_open and client.hello is not None and client.hello.reads_ahead


def _place_of(
    packets: Sequence[TokenPacket], pixels: PixelSender | None, hello: ServerHello | None
) -> PixelPlace | None:
    """Copy pixels from their device into device memory that the server reads; return the place, None if they go into
    the message."""
    if hello is None or not hello.takes_device_pixels:
        return None
    arrays = [packet.pixels for packet in packets if len(packet.pixels)]
    on_device = [array for array in arrays if not isinstance(array, np.ndarray)]
    if pixels is None or not arrays or len(on_device) < len(arrays):
        return None
    if len(on_device) == 1:
        return pixels.put(on_device[0])
    import torch

    return pixels.put(torch.cat(on_device))
