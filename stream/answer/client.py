"""Client side of the answer protocol as a state machine without I/O: query, turns, packets, glances and replies.

`stream/answer/connection.py` sends the messages of its outbox, and passes it those of the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import structs

from arr_coc.errors import ArrCocError, OptionError, StoreError
from arr_coc.types import FramePacket, FrameStamp, TokenPacket
from stream.answer.request import (
    AcceptedWatch,
    AnswerRequest,
    ClientOptions,
    Outcome,
    RefusedWatch,
    RequestTracker,
)
from stream.answer.side import SIDE
from stream.answer.triggers import Check
from stream.control import remote_error
from stream.errors import StageDied, StreamError, TransportError
from stream.events import ANSWERS_LOST, PEER_MISBEHAVES, AnswerCancelled, Notice, QueryChanged
from stream.protocol.codec import embedding_of, frame_message, glance_message, idle_message, token_message
from stream.protocol.device_pixels import PixelSender
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    Connect,
    Disconnect,
    ErrorReply,
    FramePacketMessage,
    GlanceReply,
    IdleGrant,
    IdlePass,
    IdleReply,
    KeepAlive,
    Message,
    PixelPlace,
    QueryAccepted,
    RequestLost,
    ServerHello,
    SetQuery,
    SetWatches,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    WatchAccepted,
    YesNoReply,
)
from stream.transport import Envelope
from stream.untrusted import MISDEEDS_MAX, REASON_CHARS_MAX, cut_to

UNREADABLE_MAX = 3
"""Number of unusable replies in a row that make the server fail; after fewer, the answer is repeated or dropped."""

QUERIES_KNOWN = 1_024
"""Number of recent queries remembered, so that late replies to an earlier query are recognised."""

MODEL_NOTICE = "model-notice"
"""Code of the notice in which a model reports something about itself."""

PIXELS_COPIED = "device-pixels-copied"
"""Code of the notice that pixels do not stay on their device between the processes."""

PIXELS_REASON = "pixels go to the model by way of host memory: {reason}; --single-process keeps them on the GPU"


class ClientPhase(Enum):
    """State of a client towards its answer server."""

    CONNECTING = auto()
    """The server has not accepted the query yet."""
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

    | phase          | ServerHello | QueryAccepted | TurnGrant              | TurnExpired    | GlanceReply  | reply |
    | -------------- | ----------- | ------------- | ---------------------- | -------------- | ------------ | ----- |
    | CONNECTING     | kept, once  | READY         | refused                | ignored        | refused      | *     |
    | READY          | refused     | in force      | TURN_GRANTED           | ignored        | refused      | *     |
    | TURN_REQUESTED | refused     | in force      | TURN_GRANTED, or sends | ignored        | refused      | *     |
    | TURN_GRANTED   | refused     | in force      | TURN_GRANTED, anew     | ignored        | refused      | *     |
    | GLANCING       | refused     | in force      | refused                | READY, dropped | TURN_GRANTED | *     |
    | IN_FLIGHT      | refused     | in force      | refused                | READY, dropped | refused      | READY |

    Other transitions: `request_turn` from READY to TURN_REQUESTED, `send_glance` from TURN_GRANTED to GLANCING,
    `send_request` from TURN_GRANTED to IN_FLIGHT, `connect` from any to CONNECTING. A reply (AnswerDelta, YesNoReply,
    AnswerReply) belongs to the open request in any phase (*); the last one ends it. After TurnExpired or a loss the
    request or glance is dropped, or, with `resend_after_loss`, stays open, requests a turn as soon as the phase is
    READY, and is sent with the next TurnGrant; so it is after RequestLost, at most REPEATS_MAX times. ErrorReply is a
    failure. Beside the phases, `requests.idle` is the exchange of packets to read ahead, which
    `request_turn` ends.
    WatchAccepted counts from ServerHello on. A refused message is dropped, counted in
    `refused_messages`, and reported once. If the reply to the first query is refused, the server has failed.
    """

    def __init__(self, query: str, options: ClientOptions) -> None:
        self.options = options
        self._query = query
        self._next_query: str | None = None
        self._known_queries: deque[str] = deque([query], maxlen=QUERIES_KNOWN)
        self._refused_in_row = self._unreadable_in_row = 0
        self._pixels_reported = False
        self._actions: list[Action] = []
        self.refused_messages = 0
        self.keeps_group = False
        """True if the server keeps earlier frames of this shot, which another server would lack."""
        self.has_moved = False
        """True if the query in force was accepted by a server that the client moved to without a loss."""
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
        self._query_replies_due = 1
        pixels_at: PixelPlace | None = None
        if self.options.pixels is not None:
            try:
                pixels_at = self.options.pixels.offer()
            except StoreError as error:
                self._report_copies(str(error))
        self.outbox.clear()
        self._send(
            Connect(
                query=self._query,
                encode=self.options.encode,
                watches=self.requests.watches.connect(),
                pixels_at=pixels_at,
                schema=None if self.options.schema is None else self.options.schema.text,
            )
        )

    @property
    def ready(self) -> bool:
        """True once the server has loaded its model and accepted the query."""
        return self.phase is not ClientPhase.CONNECTING

    @property
    def changes_query(self) -> bool:
        """True while a change of the query has no reply yet."""
        return self._next_query is not None

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

    def send_glance(self, packet: TokenPacket, now_ns: int) -> None:
        """Send an overview in the granted turn, which continues after the reply."""
        assert self.may_send
        self.requests.open_glance(packet, now_ns)
        self._send_open(now_ns)

    def send_request(
        self,
        packet: TokenPacket | FramePacket,
        trigger: str,
        now_ns: int,
        *,
        wants_answer: bool = True,
        checks: tuple[Check, ...] = (),
        shadow: FramePacket | None = None,
    ) -> None:
        """Send a packet in the granted turn. The caller may change a FramePacket's image once this has returned.

        Args:
            packet: packet of the frame.
            trigger: reason for the request.
            now_ns: monotonic time, in nanoseconds.
            wants_answer: whether an answer is generated after the checks.
            checks: checks of watches, evaluated before the answer.
            shadow: the full frame, with a separate image, for a shadow check: it is asked about in another turn after
                the answer, for comparison.
        """
        assert self.may_send
        request = AnswerRequest(self.requests.next_number, packet, trigger, wants_answer, checks, shadow=shadow)
        if wants_answer and self._next_query is None and trigger != SIDE:
            request.previous = self.requests.history.previous(self._query, packet.stamp.epoch)
        self.requests.open(request)
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

    def set_query(self, query: str) -> None:
        """Change the query from the next packet on; a QueryChanged event reports whether it was accepted."""
        self._next_query = query
        self.has_moved = False
        self._known_queries.append(query)
        if self.ready:
            self._query_replies_due += 1
            self._send(SetQuery(query=query))

    def set_watches(self, questions: Iterable[str]) -> None:
        """Change the questions of watches from the next packet on; an AcceptedWatch or RefusedWatch follows for each
        new one. For a client that is ready; a question may be left out if it is in no open request."""
        self.requests.watches.set_questions(questions)
        self._send(SetWatches(watches=self.requests.watches.questions))

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
            self.phase = ClientPhase.READY  # it has ended; the open one, if any, verifies its answer
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
            case QueryAccepted() as message:
                self._on_query_accepted(message, envelope)
            case WatchAccepted() as message:
                self._on_watch_accepted(message, envelope)
            case ServerHello() as message:
                if self.hello is not None:
                    raise TransportError("it sends its hello twice")
                self.hello = message
                if (reason := self.requests.group.objection(message.memory_tokens)) is not None:
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
        if message.query not in self._known_queries:
            error = TransportError("it answers a question that was not asked")
            self._refuse(error, spoils_answer=self.requests.is_open(message.answer))
            return
        self._take(self.requests.on_answer(message, envelope, now_ns), message.notice)
        self.keeps_group = message.frames > 1

    def _on_glance(self, message: GlanceReply, envelope: Envelope, now_ns: int) -> None:
        """Process the reply to an overview; the turn continues."""
        if self.phase is not ClientPhase.GLANCING:
            raise TransportError("it looked at an overview that was not sent")
        if message.query not in self._known_queries:
            glance = self.requests.glance
            error = TransportError("it looked for a question that was not asked")
            self._refuse(error, spoils_answer=glance is not None and glance.number == message.glance)
            return
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

    def _on_watch_accepted(self, message: WatchAccepted, envelope: Envelope) -> None:
        """Note that a watch's question can be evaluated, or was refused. The client is not ready without those of its
        Connect."""
        watches = self.requests.watches
        if message.query not in watches.recent or message.query in watches.accepted or self.hello is None:
            raise TransportError("it refers to a watch that was not asked for")
        error = message.error
        try:
            if error is None:
                watch = AcceptedWatch(embedding_of(message, envelope.parts), message.unseen_words)
        except TransportError as unreadable:
            if not self.ready:
                raise
            self._refuse(unreadable)
            error = f"the answer server's reply to it cannot be used: {unreadable}"
        if message.query not in watches.questions:
            return  # it was removed meanwhile
        if error is not None:
            watches.questions = tuple(question for question in watches.questions if question != message.query)
            self._actions.append(RefusedWatch(message.query, error))
            return
        watches.accepted[message.query] = watch
        if self.ready:
            self._actions.append(watch)

    def _on_query_accepted(self, message: QueryAccepted, envelope: Envelope) -> None:
        """Process the query that is now in force: the first one, or a later one."""
        if not self._query_replies_due or message.query not in self._known_queries:
            raise TransportError("it refers to a question that was not asked")
        self._query_replies_due -= 1
        changed = message.query == self._next_query
        if changed:
            self._next_query = None
        if message.error is not None:
            self._actions.append(QueryChanged(query=message.query, error=message.error))
            return
        try:
            if self.hello is None:
                raise TransportError("the answer server accepted a question before it named its model")
            if not self.ready and len(self.requests.watches.accepted) < len(self.requests.watches.connected):
                raise TransportError("the answer server accepted a question before the watches")
            embedding = embedding_of(message, envelope.parts)
        except TransportError as error:
            # The reply comes once: without it a first query fails, and a change of the query has no effect.
            self._refuse(error)
            if self.ready:
                problem = f"the answer server's reply to it cannot be used: {error}"
                self._actions.append(QueryChanged(query=message.query, error=problem))
            else:
                self._actions.append(Failure(f"its reply to the question cannot be used: {error}"))
            return
        self._query = message.query
        if not self.ready:
            self.phase = ClientPhase.READY
            if self._next_query is not None:
                self.set_query(self._next_query)
            if len(self.requests.watches.accepted) < len(self.requests.watches.questions):
                self.set_watches(self.requests.watches.questions)
        if changed:
            self._actions.append(QueryChanged(query=message.query))
        self._actions.append(embedding)

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
                    glance.number, self._turn, glance.packet, pixels_at=place, earlier_packets=earlier_packets
                )
            )
            return
        assert request is not None
        request.restart()
        request.sent_ns = now_ns
        request.turn_ns = self._turn_ns
        self.phase = ClientPhase.IN_FLIGHT
        number = request.number
        wants_answer = request.wants_answer
        checks = request.questions
        message: TokenPacketMessage | FramePacketMessage
        if isinstance(packet, TokenPacket):
            message, arrays = token_message(
                number,
                self._turn,
                packet,
                wants_answer=wants_answer,
                checks=checks,
                pixels_at=place,
                earlier_packets=earlier_packets,
            )
        else:
            in_snapshot = self.options.snapshot is not None
            message, arrays = frame_message(
                number, self._turn, packet, in_snapshot=in_snapshot, wants_answer=wants_answer, checks=checks
            )
            if request.verifies is not None and self.options.asks_meaning:
                message = structs.replace(message, compared=request.verifies.text)
        free_text = request.trigger == SIDE
        self._send(
            structs.replace(message, history=request.history, previous=request.previous, free_text=free_text), arrays
        )

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
    is_quiet = client.phase is ClientPhase.READY and not (client.busy or client.changes_query)
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
