"""Client side of the answer protocol: connection, query, turns, replies, silence, and the reconnection after a loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum, auto

import numpy as np

from arr_coc.errors import StoreError
from arr_coc.types import NS_PER_S, FramePacket, FrameStamp, QueryEmbedding, TokenPacket
from stream.answer.request import AnswerRequest, ClientOptions, RequestTracker
from stream.clock import Clock
from stream.control import remote_error
from stream.errors import ConnectionRefused, StageDied, TransportError
from stream.events import ANSWERS_LOST, PEER_MISBEHAVES, AnswerCancelled, Event, Notice, QueryChanged
from stream.protocol.codec import embedding_of, frame_message, glance_message, token_message
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    Connect,
    Disconnect,
    ErrorReply,
    GlanceReply,
    KeepAlive,
    PixelPlace,
    QueryAccepted,
    RequestLost,
    ServerHello,
    SetQuery,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    YesNoReply,
)
from stream.transport import Envelope, Link
from stream.transport.pool import ServerPool
from stream.untrusted import HEARD_AT_ONCE, MISDEEDS_MAX, REASON_CHARS_MAX, cut_to

FAILURES_MAX = 5
"""Answers that may fail one after the other before the run fails."""

FAILURE_PAUSE_NS, FAILURE_PAUSE_MAX_NS = NS_PER_S // 4, 2 * NS_PER_S
"""Time without a request after a second failure in a row, doubled with each further one, and the longest."""

REFUSED_PAUSE_NS = NS_PER_S // 2
"""Time before a server that was lost is looked for again where something else refuses connections."""

UNREADABLE_MAX = 3
"""Times that an answer may be repeated or dropped because a reply cannot be used, before that is a failure."""

QUERIES_KNOWN = 1_024
"""Queries, the last ones, that are known again in replies: more than anybody sets while a slow model gives one answer.
"""

ANSWER_SERVER = "answer-server"
"""Code of the notice that says which of several servers answers, or refuses to."""

MODEL_NOTICE = "model-notice"
"""Code of the notice in which a model says something of itself."""

PIXELS_COPIED = "device-pixels-copied"
"""Code of the notice that pixels do not stay on their device between the processes."""

PIXELS_REASON = "pixels go to the model by way of host memory: {reason}; --single-process keeps them on the GPU"

LIFELESS_S = 1.0
"""A server that has sent nothing for so long is left where its process gives no sign of life, and another one is there.
"""

STEP_NS_MAX = 1 * NS_PER_S
"""The most that counts between two updates of a timer: a run that was suspended has not been kept waiting."""


class SilenceTimer:
    """Timer of a peer's silence, counted from update to update. Belongs to the thread that waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._updated_ns = clock.now_ns()
        self._silent_ns = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds of silence while something was awaited; 0 where nothing is."""
        return self._silent_ns / NS_PER_S

    def update(self, *, waiting: bool, received: bool) -> None:
        """Note whether anything is awaited, and whether anything has come since the last update."""
        now_ns = self._clock.now_ns()
        if received or not waiting:
            self._silent_ns = 0
        else:
            self._silent_ns += min(now_ns - self._updated_ns, STEP_NS_MAX)
        self._updated_ns = now_ns


class ClientPhase(Enum):
    """State of a client towards its answer server."""

    CONNECTING = auto()
    """The server has not accepted the query yet."""
    READY = auto()
    TURN_REQUESTED = auto()
    TURN_GRANTED = auto()
    GLANCING = auto()
    """An overview was sent, and where the model looks is awaited; the turn goes on."""
    IN_FLIGHT = auto()
    """A packet was sent, and its answer is awaited."""


class AnswerClient:
    """Client of one answer server at a time; belongs to one thread.

    `receive_events` takes in all messages, yields the events that they make, and keeps what its reader takes: `hello`,
    `take_embedding`, and the feedback in `requests`. By phase and message:

    | phase          | ServerHello | QueryAccepted | TurnGrant              | TurnExpired    | GlanceReply  | reply |
    | -------------- | ----------- | ------------- | ---------------------- | -------------- | ------------ | ----- |
    | CONNECTING     | kept, once  | READY         | refused                | ignored        | refused      | *     |
    | READY          | refused     | in force      | TURN_GRANTED           | ignored        | refused      | *     |
    | TURN_REQUESTED | refused     | in force      | TURN_GRANTED, or sends | ignored        | refused      | *     |
    | TURN_GRANTED   | refused     | in force      | TURN_GRANTED, anew     | ignored        | refused      | *     |
    | GLANCING       | refused     | in force      | refused                | READY, dropped | TURN_GRANTED | *     |
    | IN_FLIGHT      | refused     | in force      | refused                | READY, dropped | refused      | READY |

    The other ways: `request_turn` from READY to TURN_REQUESTED, `send_glance` from TURN_GRANTED to GLANCING,
    `send_request` from TURN_GRANTED to IN_FLIGHT, `reconnect` from any to CONNECTING. A reply (AnswerDelta, YesNoReply,
    AnswerReply) belongs to the open request in any phase (*); the last one ends it. After TurnExpired or a loss the
    request or glance is dropped, or, with `resend_after_loss`, stays open, requests a turn as soon as the phase is
    READY, and is sent with the next TurnGrant; after RequestLost it is so too, a few times. KeepAlive ends silence.
    ErrorReply raises, or reconnects. A refused
    message is dropped, counted in `refused_messages`, and reported once. If the reply to the first query is refused,
    the server has failed.
    """

    def __init__(self, query: str, options: ClientOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._query = query
        self._next_query: str | None = None
        self._known_queries: deque[str] = deque([query], maxlen=QUERIES_KNOWN)
        self._embedding: QueryEmbedding | None = None
        self._pending_events: list[Event] = []
        self._recalled_events: list[Event] = []
        self._failures = self._refused_in_row = self._unreadable_in_row = 0
        self._refusal_reported = self._loss_reported = self._was_lost = self._pixels_reported = False
        self.refused_messages = 0
        self._was_ready = False
        self._pool: ServerPool | None = None
        self._connect_after_ns = 0
        self._keeps_window = False
        self._server_told: tuple[str, str] = ("", "")
        self.moved = False
        """True where the query in force is that of a server that was changed to without a loss."""
        self.requests = RequestTracker(options, clock)
        self.absence = SilenceTimer(clock)
        """Time without a server that is ready, since one was lost."""

    def open(self, connect: Callable[[], Link], pool: ServerPool | None = None) -> None:
        """Make the link with `connect`, which is called again after each loss.

        `pool` knows the servers, where there may be several; it is closed with the client.
        """
        self._connect = connect
        self._pool = pool
        self._open_link()

    def _open_link(self) -> None:
        self.link = self._connect()
        self.phase = ClientPhase.CONNECTING
        self.hello: ServerHello | None = None
        self.silence = SilenceTimer(self._clock)
        """Time without a message while a turn or an answer is awaited."""
        self._lifeless = SilenceTimer(self._clock)
        self._connect_sent = False
        self._turn = 0
        self._turn_requested_ns = self._turn_ns = 0
        self._query_replies_due = 1
        self._load = KeepAlive()

    @property
    def ready(self) -> bool:
        """True once the server has its model and knows the query."""
        return self.phase is not ClientPhase.CONNECTING

    @property
    def reached(self) -> bool:
        """True where a server was reached that may be ready some time."""
        return self.link.connected if self._pool is None else self._pool.hopeful

    @property
    def problems(self) -> str:
        """Reasons that no server can be used, as far as they are known; for people."""
        return "" if self._pool is None else self._pool.problems

    @property
    def may_send(self) -> bool:
        """True if a turn was granted for the next request."""
        return self.phase is ClientPhase.TURN_GRANTED

    @property
    def busy(self) -> bool:
        """True while an answer or a glance is awaited."""
        return self.requests.is_any_open or bool(self._recalled_events)

    def request_turn(self) -> None:
        """Ask for a turn, once; as soon as the server is ready."""
        if self.phase is ClientPhase.READY and self.link.offer(TurnRequest()):
            self.phase, self._turn_requested_ns = ClientPhase.TURN_REQUESTED, self._clock.now_ns()

    def recall(self, stamp: FrameStamp) -> bool:
        """Return whether the journal holds the answer about this frame; it comes with the next `receive_events`."""
        events = self.requests.from_journal(stamp)
        self._recalled_events += events
        return bool(events)

    def recall_glance(self, stamp: FrameStamp) -> bool:
        """Return whether the journal holds the answer about this frame, and so the glance before it, if any."""
        return self.requests.glance_from_journal(stamp)

    def send_glance(self, packet: TokenPacket) -> None:
        """Send an overview for the turn that was granted, which goes on once the model has looked."""
        assert self.may_send
        self.requests.glances.open(packet)
        self._send_open()

    def send_request(
        self,
        packet: TokenPacket | FramePacket,
        trigger: str,
        *,
        wants_answer: bool = True,
        yes_no_trigger: str = "",
        shadow: FramePacket | None = None,
    ) -> None:
        """Send a packet for the turn that was granted. A FramePacket's image may change once this has returned.

        Without `wants_answer` only the standing query is evaluated. `shadow`: the same frame whole, with an image of
        its own, which is asked about in a turn of its own after the answer, to compare.
        """
        assert self.may_send
        number = self.requests.next_number
        self.requests.open(AnswerRequest(number, packet, trigger, wants_answer, yes_no_trigger, shadow=shadow))
        self._send_open()

    def cancel_answer(self, new: FrameStamp, by: str = "cut") -> AnswerCancelled | None:
        """Drop the answer that is being generated: `by` is the cause, `new` the first frame after that.

        Returns the event that reports it; None where no answer was being generated. A turn may be requested at once.
        """
        event = self.requests.cancel(new, by)
        if event is not None:
            self.link.offer(Cancel())
            self._release_turn()
        return event

    def set_query(self, query: str) -> None:
        """Change the query from the next packet on; a QueryChanged event tells whether it was accepted."""
        self._next_query, self.moved = query, False
        self._known_queries.append(query)
        if self.ready:
            self._query_replies_due += 1
            self.link.send(SetQuery(query=query))

    def take_embedding(self) -> QueryEmbedding | None:
        """Return the embedding of a query that came into force since the last call."""
        embedding, self._embedding = self._embedding, None
        return embedding

    def disconnect(self) -> None:
        """Announce that nothing more will be asked. A peer that is gone need not receive it."""
        self.link.offer(Disconnect())

    def cancel(self) -> None:
        """Announce that no answer is wanted any more. A peer that is gone need not receive it."""
        self.link.offer(Cancel())
        self.disconnect()

    def close(self) -> None:
        """Close the link, and the pool."""
        self.link.close()
        if self._pool is not None:
            self._pool.close()

    def on_cut(self) -> None:
        """Note that a new shot has begun: frames that the server keeps are of no more use, and an answer in flight is
        about the shot before."""
        self._keeps_window = False
        self.requests.on_cut()

    def receive_events(self, timeout_ms: int) -> Iterator[Event]:
        """Yield the events of the messages that are there; waits at most `timeout_ms` for the first one.

        Leaves some for the next call where a peer sends without end.

        Raises StageDied, or the error that the user can put right, where the server reports a failure or is gone for
        good; ConnectionRefused where it does not accept this end's key.
        """
        recalled, self._recalled_events = self._recalled_events, []
        yield from recalled
        yield from self._take_pending_events()
        self.absence.update(waiting=self._was_lost and not self.ready, received=False)
        self._send_connect()
        heard = False
        for number in range(HEARD_AT_ONCE):
            received, event = self._receive_one(0 if recalled or number else timeout_ms)
            heard = heard or received
            if event is not None:
                yield event
            if not received:
                break
        if self._pool is not None:
            self._follow_pool(self._pool)  # first: a server that drains may be gone by now, and nothing is lost
        if self._is_link_lost():
            self._on_lost_connection("the connection was lost")
        elif self._pool is not None and self._is_lifeless(self._pool, heard=heard):
            self._on_lost_connection(f"{self._pool.label(self.link.endpoint)} gives no sign of life")
        if self.requests.is_any_open:
            self.request_turn()
        yield from self._take_pending_events()

    def reconnect(self, reason: str) -> None:
        """Give up this server, and look for another one.

        `reason` is reported by `receive_events` where nobody else reports a death, once until there is an answer again.
        """
        if self._pool is not None:
            self._pool.note_lost(self.link.endpoint)
        self.link.close()
        self.requests.drop()
        self._was_lost, self.moved = True, False
        self._embedding = None  # of a server whose hello may have come in the same moment
        if not self._options.supervised and not self._loss_reported:
            self._loss_reported = True
            next_step = "reconnecting to the answer server" if self._pool is None else "looking for another server"
            self._pending_events.append(Notice(code=ANSWERS_LOST, message=f"no answers: {reason}; {next_step}"))
        self._open_link()

    def _is_link_lost(self) -> bool:
        """Return whether a server that was connected is gone. Raises ConnectionRefused where it refuses this end's key,
        unless another one may take it, or a loss came before: then what listens there may not be the server."""
        try:
            return self.link.lost
        except ConnectionRefused as error:
            if self._pool is not None:
                self._on_refusal(self._pool, error)
            elif self._was_lost and self._options.reconnect:
                self._wait(REFUSED_PAUSE_NS)
                self.link.close()
                self._open_link()
            else:
                raise
        return False

    def _is_lifeless(self, pool: ServerPool, *, heard: bool) -> bool:
        """Return whether the server's process seems to hang, and another one may answer instead.

        A server that works on an answer may be silent here for long, but its process still replies to heartbeats.
        """
        lifeless = self.ready and self._options.reconnect and pool.is_lifeless(self.link.endpoint)
        self._lifeless.update(waiting=lifeless, received=heard)
        return self._lifeless.elapsed_s >= LIFELESS_S

    def _wait(self, pause_ns: int) -> None:
        """Ask nothing of a server for so long."""
        self._connect_after_ns = self._clock.now_ns() + pause_ns

    def _follow_pool(self, pool: ServerPool) -> None:
        """Leave a server that is not there for one that is, and between two answers one for another where that is
        better. Raises the error of the first server where all refuse this run, and none ever took it."""
        refusal = None if self._was_ready else pool.refusal_of_all()
        if refusal is not None:
            raise refusal
        for message in pool.take_refusals():
            self._pending_events.append(Notice(code=ANSWER_SERVER, message=cut_to(message, REASON_CHARS_MAX)))
        here = self.link.endpoint
        if self.phase is ClientPhase.CONNECTING:
            if pool.has_fitter(here):
                self.link.close()
                self._open_link()
        elif self.phase in (ClientPhase.READY, ClientPhase.TURN_REQUESTED) and not self._recalled_events:
            reason = pool.reason_to_move(here, self._load, keeps_window=self._keeps_window)
            if reason is not None:
                self._move(f"{pool.label(here)}: {reason}")

    def _move(self, reason: str) -> None:
        """Change to another server. Nothing is lost: an open request has not been sent yet, or is sent again."""
        self.link.offer(Disconnect())
        self.link.close()
        self.moved, self._embedding, self._server_told = True, None, (self._server_told[0], reason)
        self._open_link()

    def _on_refusal(self, pool: ServerPool, error: Exception) -> None:
        """A server of the pool refuses this run: another one may take it."""
        pool.note_failed(self.link.endpoint, error)
        self.link.close()
        self._open_link()

    def _tell_server(self, pool: ServerPool) -> None:
        """Report which server of the pool answers from now on, where that is another one than before."""
        here, reason = pool.label(self.link.endpoint), self._server_told[1]
        if here != self._server_told[0]:
            message = f"answers come from {here}" + (f" now ({reason})" if reason else "")
            self._pending_events.append(Notice(code=ANSWER_SERVER, message=message))
        self._server_told = (here, "")

    def _take_pending_events(self) -> list[Event]:
        events, self._pending_events = self._pending_events, []
        return events

    def _send_connect(self) -> None:
        """Introduce this client, once; as soon as the link takes it."""
        if not self._connect_sent and self._clock.now_ns() >= self._connect_after_ns:
            options = self._options
            message = Connect(
                query=self._query,
                encode=options.encode,
                standing_query=options.standing_query,
                pixels_at=self._offered_pixels(),
            )
            self._connect_sent = self.link.offer(message)

    def _offered_pixels(self) -> PixelPlace | None:
        """Return where pixels could lie that stay on their device; None where they cannot, which is reported once."""
        try:
            return None if self._options.pixels is None else self._options.pixels.offer()
        except StoreError as error:
            self._report_copies(str(error))
            return None

    def _report_copies(self, reason: str) -> None:
        """Report, once, why pixels do not stay on their device."""
        if not self._pixels_reported:
            self._pixels_reported = True
            self._pending_events.append(Notice(code=PIXELS_COPIED, message=PIXELS_REASON.format(reason=reason)))

    def _send_open(self) -> None:
        """Send the open glance or request for the turn that was granted."""
        glance, request = self.requests.glances.request, self.requests.request
        if glance is not None:
            self.phase = ClientPhase.GLANCING
            place = self._place_of(glance.packet)
            message, arrays = glance_message(glance.number, self._turn, glance.packet, pixels_at=place)
            self.link.send(message, arrays)
        elif request is not None:
            self._send_request(request)

    def _send_request(self, request: AnswerRequest) -> None:
        """Send a request; a whole frame's image may lie in the snapshot."""
        request.restart()
        request.sent_ns, request.turn_ns = self._clock.now_ns(), self._turn_ns
        self.phase = ClientPhase.IN_FLIGHT
        number, packet, wants_answer = request.number, request.packet, request.wants_answer
        if isinstance(packet, TokenPacket):
            place = self._place_of(packet)
            message, arrays = token_message(number, self._turn, packet, wants_answer=wants_answer, pixels_at=place)
            self.link.send(message, arrays)
        else:
            in_snapshot = self._options.snapshot is not None
            whole, arrays = frame_message(
                number, self._turn, packet, in_snapshot=in_snapshot, wants_answer=wants_answer
            )
            self.link.send(whole, arrays)

    def _place_of(self, packet: TokenPacket) -> PixelPlace | None:
        """Lay pixels that are on a device where the server finds them; None where it wants them in the message."""
        pixels, there = self._options.pixels, self.hello is not None and self.hello.takes_device_pixels
        if pixels is None or not there or isinstance(packet.pixels, np.ndarray):
            return None
        return pixels.put(packet.pixels)

    def _release_turn(self) -> None:
        """Return to READY where a turn was used or requested for a request that has ended."""
        if self.phase in (ClientPhase.GLANCING, ClientPhase.IN_FLIGHT, ClientPhase.TURN_REQUESTED):
            self.phase = ClientPhase.READY

    def _receive_one(self, timeout_ms: int) -> tuple[bool, Event | None]:
        """Return whether there was a message, and its event."""
        answer_due = self.requests.is_any_open
        try:
            received = self.link.receive(timeout_ms)
        except TransportError as error:
            notice = self._refuse(error)
            if not self.ready:
                self._fail(f"its first messages cannot be used: {error}")
            elif answer_due:
                self._on_unusable_reply(error)
            return True, notice
        turn_due = self.phase is ClientPhase.TURN_REQUESTED
        self.silence.update(waiting=self.ready and (answer_due or turn_due), received=received is not None)
        if received is None:
            return False, None
        try:
            event = self._dispatch(received)
        except ConnectionRefused:
            raise
        except TransportError as error:
            return True, self._refuse(error)
        feedback_error = self.requests.take_feedback_error()
        if feedback_error is not None and (notice := self._refuse(feedback_error)) is not None:
            self._pending_events.append(notice)
        return True, event

    def _dispatch(self, received: Envelope) -> Event | None:
        """Take one message in. Raises TransportError for one that a server may not send."""
        message = received.message
        if isinstance(message, TurnGrant):
            self._on_turn(message)
        elif isinstance(message, TurnExpired):
            self._on_turn_expired(message)
        elif isinstance(message, AnswerDelta):
            return self.requests.on_delta(message)
        elif isinstance(message, YesNoReply):
            return self._on_yes_no(message, received)
        elif isinstance(message, AnswerReply):
            return self._on_answer(message, received)
        elif isinstance(message, GlanceReply):
            self._on_glance(message, received)
        elif isinstance(message, RequestLost):
            return self._on_request_lost(message)
        elif isinstance(message, QueryAccepted):
            return self._on_query_accepted(message, received)
        elif isinstance(message, ServerHello):
            if self.hello is not None:
                raise TransportError("it sends its hello twice")
            self.hello = message
            if message.pixels_refused:
                self._report_copies(message.pixels_refused)
        elif isinstance(message, ErrorReply):
            self._on_error(message)
        elif isinstance(message, KeepAlive):
            self._load = message
        else:
            raise TransportError(f"the answer server sent a message of the wrong kind, {type(message).__name__}")
        return None

    def _on_turn(self, message: TurnGrant) -> None:
        if self.phase in (ClientPhase.CONNECTING, ClientPhase.GLANCING, ClientPhase.IN_FLIGHT):
            raise TransportError("it grants a turn that was not requested")
        if self.phase is ClientPhase.TURN_REQUESTED:
            self._turn_ns = self._clock.now_ns() - self._turn_requested_ns
        self.phase, self._turn = ClientPhase.TURN_GRANTED, message.turn
        self._send_open()

    def _on_turn_expired(self, message: TurnExpired) -> None:
        """The packet came too late. One of an earlier turn was of a request that is not open any more."""
        if self.phase in (ClientPhase.GLANCING, ClientPhase.IN_FLIGHT) and message.turn == self._turn:
            self._drop_request()

    def _drop_request(self) -> None:
        """The packet came to nothing: its request or glance is dropped, or stays open to be sent again."""
        self.requests.drop()
        self._release_turn()

    def _on_answer(self, message: AnswerReply, received: Envelope) -> Event | None:
        if message.query not in self._known_queries:
            error = TransportError("it answers a question that was not asked")
            if self.requests.is_open(message.answer):
                self._on_unusable_reply(error)
            raise error
        request = self.requests.request
        answer = self.requests.on_answer(message, received)
        self._keeps_window = message.frames > 1
        self._on_success(request)
        self._pass_on(message.notice)
        return answer

    def _on_glance(self, message: GlanceReply, received: Envelope) -> None:
        """Take where the model looked; the turn goes on."""
        if self.phase is not ClientPhase.GLANCING:
            raise TransportError("it looked at an overview that was not sent")
        if message.query not in self._known_queries:
            error = TransportError("it looked for a question that was not asked")
            if self.requests.glances.is_open(message.glance):
                self._on_unusable_reply(error)
            raise error
        self.requests.on_glance(message, received)
        self.phase = ClientPhase.TURN_GRANTED
        self._failures = self._refused_in_row = self._unreadable_in_row = 0
        self._loss_reported = False

    def _on_yes_no(self, message: YesNoReply, received: Envelope) -> Event | None:
        request = self.requests.request
        result = self.requests.on_yes_no(message, received)
        self._on_success(request)
        self._pass_on(message.notice)
        return result

    def _pass_on(self, notice: str) -> None:
        """Report what the model says that the user should know."""
        if notice:
            self._pending_events.append(Notice(code=MODEL_NOTICE, message=notice))

    def _on_request_lost(self, message: RequestLost) -> Event | None:
        """Report an answer that the server could not give; the server is there, and the next one may come."""
        again = self.requests.on_lost(message.answer)
        if again is None:
            return None
        self._failures = self._refused_in_row = self._unreadable_in_row = 0
        self._release_turn()
        next_step = "asking again" if again else "going on with the newest frame"
        return Notice(code=ANSWERS_LOST, message=f"an answer was lost: {message.reason}; {next_step}")

    def _on_success(self, answered: AnswerRequest | None) -> None:
        """The server has done what it was asked for, and perhaps all that it was asked for with this request."""
        self._failures = self._refused_in_row = self._unreadable_in_row = 0
        self._loss_reported = False
        if self._pool is not None:
            self._pool.note_answered(self.link.endpoint)
        if self.phase is ClientPhase.IN_FLIGHT and self.requests.request is not answered:
            self.phase = ClientPhase.READY

    def _on_query_accepted(self, message: QueryAccepted, received: Envelope) -> Event | None:
        """Take the query that is in force now: the first one, or one that was set meanwhile."""
        if not self._query_replies_due or message.query not in self._known_queries:
            raise TransportError("it refers to a question that was not asked")
        self._query_replies_due -= 1
        changed = self._next_query is not None and message.query == self._next_query
        if changed:
            self._next_query = None
        if message.error is not None:
            return QueryChanged(query=message.query, error=message.error)
        try:
            if self.hello is None:
                raise TransportError("the answer server accepted a question before it named its model")
            self._embedding = embedding_of(message, received.parts)
        except TransportError as error:
            return self._on_unusable_acceptance(message.query, error)
        self._query = message.query
        if not self.ready:
            self.phase, self._was_ready = ClientPhase.READY, True
            if self._pool is not None:
                self._tell_server(self._pool)
            if self._next_query is not None:
                self.set_query(self._next_query)
        return QueryChanged(query=message.query) if changed else None

    def _on_unusable_acceptance(self, query: str, error: TransportError) -> Event | None:
        """Refuse the awaited reply to a query, which comes once: a first query fails with it, a changed one is off."""
        notice = self._refuse(error)
        if not self.ready:
            self._fail(f"its reply to the question cannot be used: {error}")
            return notice
        if notice is not None:
            self._pending_events.append(notice)
        return QueryChanged(query=query, error=f"the answer server's reply to it cannot be used: {error}")

    def _on_error(self, message: ErrorReply) -> None:
        """Raises the server's error, unless another server may do better."""
        error = remote_error(message.error, message.message)
        if self._pool is not None and self.phase is ClientPhase.CONNECTING:
            self._on_refusal(self._pool, error or StageDied("answer", message.message))
            return
        if error is not None and error.user_fixable:
            raise error
        self._fail(message.message)

    def _on_lost_connection(self, reason: str) -> None:
        if self._options.reconnect and self.requests.is_any_open and not self._options.supervised:
            self._fail(reason)
        elif self._options.reconnect:
            self.reconnect(reason)
        elif not self._options.supervised:
            raise StageDied("answer", "the connection to it was lost; is `serve-answers` still running there?")

    def _on_unusable_reply(self, error: TransportError) -> None:
        """What could not be used may have been the end of the answer: it is asked for again, or dropped."""
        self._unreadable_in_row += 1
        if self._unreadable_in_row >= UNREADABLE_MAX:
            self._unreadable_in_row = 0
            self._fail(str(error))
        else:
            self._drop_request()

    def _refuse(self, error: TransportError) -> Notice | None:
        """Count a message that may not be sent; report the first one, and give up a server that sends nothing else."""
        self.refused_messages += 1
        self._refused_in_row += 1
        if self._refused_in_row >= MISDEEDS_MAX:
            self._refused_in_row = 0
            self._fail(f"{MISDEEDS_MAX} messages in a row were invalid; the last: {error}")
        if self._refusal_reported:
            return None
        self._refusal_reported = True
        message = f"{self.link.endpoint} sent invalid messages, which are dropped: {error}"
        return Notice(code=PEER_MISBEHAVES, message=cut_to(message, REASON_CHARS_MAX))

    def _fail(self, reason: str) -> None:
        """Raises StageDied, unless another server may do better."""
        self._failures += 1
        if not self._options.reconnect or (self._failures > FAILURES_MAX and not self._options.persistent):
            raise StageDied("answer", reason)
        if self._pool is not None:
            self._pool.note_failed(self.link.endpoint)
        if self._options.persistent and self._failures > 1:
            self._wait(min(FAILURE_PAUSE_MAX_NS, FAILURE_PAUSE_NS << min(self._failures - 2, 10)))
        self.reconnect(reason)
