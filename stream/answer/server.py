"""Answer server: loads the model, and answers the packets of its clients in fair turns, one in each of its slots."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy.typing as npt

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ArrCocError, ContextLengthError, counted
from arr_coc.types import NS_PER_S, FramePacket, QueryEmbedding, TokenPacket
from stream.answer.admission import ServerOptions, check_admission, named_words, server_hello
from stream.answer.idle_work import IdleService
from stream.answer.memory import kept_place, remember
from stream.answer.model import AnswerModel, AnswerStats, GlanceStats, Packet
from stream.answer.turns import ClientRequest, ClientState, ClientTable, SlotScheduler, Turn
from stream.clock import Clock, MonotonicClock
from stream.control import WAIT_MS, RunControl, describe
from stream.errors import AnswerLost, StreamError, TransportError
from stream.protocol.buffers import SharedFrameReader
from stream.protocol.codec import feedback_arrays, frame_packet, specs_of, token_packets
from stream.protocol.device_pixels import PixelReceiver
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    CheckScore,
    Connect,
    Disconnect,
    ErrorReply,
    FramePacketMessage,
    GlancePacketMessage,
    GlanceReply,
    IdlePacketMessage,
    IdlePass,
    IdleRequest,
    KeepAlive,
    Message,
    PixelPlace,
    Probe,
    QueryAccepted,
    RequestLost,
    SetQuery,
    SetWatches,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    WatchAccepted,
    YesNoReply,
)
from stream.transport import Client, Envelope, Transport
from stream.untrusted import (
    CLIENTS_MAX,
    DETAILS_CHARS_MAX,
    HEARD_AT_ONCE,
    QUESTIONS_AT_ONCE,
    REASON_CHARS_MAX,
    REPLY_PART_BYTES_MAX,
    cut_to,
)

if TYPE_CHECKING:
    import torch

TURN_LIMIT_NS = 1 * NS_PER_S
"""Time after which a granted turn expires if the client has not sent its packet."""

KEEP_ALIVE_NS = 1 * NS_PER_S
"""Interval of the KeepAlive to every client, which also detects lost clients."""

LOAD_FAILURE_NS = 5 * NS_PER_S
"""Time that a server whose model failed to load waits for a client to report it to."""

Arrays: TypeAlias = Sequence[npt.NDArray[Any]]

Questions: TypeAlias = Connect | SetQuery | SetWatches
"""Message with questions, which the model embeds."""

log = logging.getLogger(__name__)


class PacketReader:
    """Reader of clients' packets. `snapshot`: memory of frames that are not in the message; `pixels`: receiver of token
    pixels that are not."""

    def __init__(self, snapshot: SharedFrameReader | None = None, pixels: PixelReceiver | None = None) -> None:
        self._snapshot = snapshot
        self._pixels = pixels

    def refused_pixels(self, message: Connect, model: AnswerModel) -> str | None:
        """Return why pixels do not stay on their device, "" if that would not help; None if they do."""
        if message.pixels_at is None or self._pixels is None or not model.takes_device_pixels:
            return ""
        return self._pixels.refusal(message.pixels_at)

    def tokens(self, envelope: Envelope) -> list[TokenPacket]:
        """Return the token packet of a message, after the earlier packets that came with it. Raises TransportError if
        they cannot be read."""
        assert isinstance(envelope.message, (TokenPacketMessage, GlancePacketMessage, IdlePacketMessage))
        return token_packets(envelope.message, envelope.parts, self._take_pixels)

    def frame(self, envelope: Envelope) -> FramePacket:
        """Return the frame of a message. Raises TransportError if it cannot be read."""
        message = envelope.message
        assert isinstance(message, FramePacketMessage)
        grid = message.grid
        image = None
        if message.in_snapshot and self._snapshot is not None:
            image = self._snapshot.read(grid.padded_height_px, grid.padded_width_px)
        return frame_packet(message, envelope.parts, image)

    def _take_pixels(self, place: PixelPlace, count: int) -> torch.Tensor:
        if self._pixels is None:
            raise TransportError("a packet refers to pixels on a device, and this link shares none")
        return self._pixels.take(place, count)


class AnswerServer:
    """Answer stage, in a separate process or thread; `snapshot` and `pixels` as in `PacketReader`."""

    name = "answer"

    def __init__(
        self,
        load_model: Callable[[], AnswerModel],
        options: ServerOptions,
        transport: Transport,
        control: RunControl,
        snapshot: SharedFrameReader | None = None,
        pixels: PixelReceiver | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._packets = PacketReader(snapshot, pixels)
        self._load_model = load_model
        self._options = options
        self._transport = transport
        self._control = control
        self._statistics = options.statistics
        self._clients = ClientTable(self._statistics)
        self._paused_until_ns = 0
        self._keep_alive_ns = 0
        self._drain_announced = False
        self._queries_taken: Counter[Client] = Counter()
        self._deferred_queries: dict[Client, list[Questions]] = {}

    @property
    def drops(self) -> dict[str, int]:
        """Empty: clients send only what the server has granted."""
        return {}

    def run(self) -> None:
        """Load the model, and serve clients until the run is cancelled.

        A shared server whose run is to end drains: it grants no more turns, and returns after the last answer.
        """
        with closing(self._transport.server_link(self._options.endpoint, self._options.curve)) as self._link:
            try:
                self._model = self._load_model()
            except Exception as error:
                self._report_load_failure(_error_reply(error))
                raise
            self._scheduler = SlotScheduler(self._model, self, self._statistics, self._clock)
            self._idle = IdleService(
                self._model, self._packets.tokens, self._send, self._fail, self._statistics, self._clock
            )
            self._provenance = self._options.provenance()
            self._statistics.begin_serving()
            self._options.on_ready()
            while not (self._drain_announced and self._scheduler.idle):
                self._step()

    @property
    def _draining(self) -> bool:
        """True once no more turns are granted."""
        return self._options.shared and self._control.ending and not self._control.cancelled

    def _step(self) -> None:
        """Grant turns, receive messages, serve turns and advance the answers. Raises CancelledError once the run is
        cancelled."""
        self._grant_turns()
        self._take_deferred_queries()
        is_free = self._scheduler.idle and not self._clients.is_any_waiting
        self._receive(min(self._scheduler.wait_ms, self._idle.wait_ms(is_free=is_free)))
        for client, turn in tuple(self._scheduler.turns.items()):
            if self._scheduler.turns.get(client) is not turn:
                continue
            if turn.packet is not None:
                self._serve_turn(client, turn, turn.packet)
            elif self._clock.now_ns() - turn.granted_ns > self._clients.turn_limit_ns(client, TURN_LIMIT_NS):
                self._clients.turn_expired(client)
                self._scheduler.release(client)
        self._scheduler.advance()
        if not self._draining:
            self._idle.advance(is_free=self._scheduler.idle and not self._clients.is_any_waiting)

    def _grant_turns(self) -> None:
        """Grant a turn for each free slot, to the clients that have waited longest."""
        if self._draining or self._clock.now_ns() < self._paused_until_ns:
            return
        scheduler = self._scheduler
        while scheduler.has_room and (client := self._clients.pop_next(scheduler.holders)) is not None:
            turn = scheduler.grant(client)
            memory = self._model.memory
            if memory is not None:
                self._statistics.memory_is(memory.groups, memory.visual_tokens, memory.evictions)
            self._send(client, TurnGrant(turn=turn.number, kept=kept_place(self._model.memory, client)))

    def _serve_turn(self, client: Client, turn: Turn, envelope: Envelope) -> None:
        """Serve the packet that the client sent in its turn."""
        message = envelope.message
        state = self._clients.get(client)
        assert state is not None, "a client that leaves has no turn"
        if isinstance(message, GlancePacketMessage):
            self._glance(client, turn, state.query, envelope)
            return
        assert isinstance(message, (TokenPacketMessage, FramePacketMessage))
        try:
            if isinstance(message, FramePacketMessage):
                packet: Packet = self._packets.frame(envelope)
            else:
                packet = remember(self._model.memory, client, self._packets.tokens(envelope))
        except Exception as error:
            self._fail(client, error)
            return
        if not set(message.checks) <= set(state.watches) or len(set(message.checks)) < len(message.checks):
            self._refuse(client, TransportError("a packet asks for the check of a watch that its client does not have"))
            return
        self._clients.turn_used(client)
        previous = message.previous
        if previous is not None and previous.query != state.query:
            previous = None  # a new question came after the packet
        self._scheduler.begin(
            ClientRequest(
                client,
                message.answer,
                packet,
                state.query,
                message.checks,
                message.wants_answer,
                message.history,
                previous,
                None if message.free_text else state.schema,
                message.compared if isinstance(message, FramePacketMessage) else None,
            )
        )

    def _glance(self, client: Client, turn: Turn, query: str, envelope: Envelope) -> None:
        """Reply with the model's attention to an overview, given the client's query. The turn continues, and its time
        limit starts anew."""
        assert isinstance(envelope.message, GlancePacketMessage)
        turn.glances += 1
        began_ns = self._statistics.turn_began()
        glance = None
        failed = True
        try:
            packet = remember(self._model.memory, client, self._packets.tokens(envelope))
            glance = self._model.glance(client, packet, query)
            failed = False
        except AnswerLost as error:
            self._report_lost(client, None, error)
        except Exception as error:
            self._fail(client, error)
            return
        finally:
            self._statistics.turn_ended(began_ns, failed=failed)
        if glance is not None:
            self._statistics.count_glance(glance.tokens_used)
            self._receive(0)  # a Cancel that came meanwhile takes the turn back
            if self._scheduler.turns.get(client) is not turn:
                return
            self._send(client, *_glance_reply(envelope.message.glance, query, glance))
        turn.packet = None
        turn.granted_ns = self._clock.now_ns()

    def _receive(self, timeout_ms: int) -> None:
        """Receive messages of all clients, at most HEARD_AT_ONCE per call."""
        self._control.check()
        self._statistics.note_poll()
        for number in range(HEARD_AT_ONCE):
            arrival = self._link.receive(0 if number else timeout_ms)
            if arrival is None:
                break
            client, message = arrival
            if isinstance(message, TransportError):
                self._on_unreadable(client, message)
            else:
                self._dispatch(client, message)
        now_ns = self._clock.now_ns()
        if now_ns - self._keep_alive_ns > KEEP_ALIVE_NS or self._draining != self._drain_announced:
            self._keep_alive_ns = now_ns
            self._drain_announced = self._draining
            for place, client in enumerate(self._clients):
                self._send(client, self._load(place))

    def _load(self, place: int) -> KeepAlive:
        """Return the load of this server, for the client at this place."""
        clients = len(self._clients)
        slots = self._statistics.slots
        return KeepAlive(clients=clients, slots=slots, place=place, draining=self._draining)

    def _dispatch(self, client: Client, envelope: Envelope) -> None:
        message = envelope.message
        state = self._clients.get(client)
        if isinstance(message, Connect) or (isinstance(message, (SetQuery, SetWatches)) and state is not None):
            self._queries_taken[client] += 1
            if self._queries_taken[client] <= QUESTIONS_AT_ONCE:
                self._take_query(client, message)
            elif client in self._deferred_queries or len(self._deferred_queries) < CLIENTS_MAX:
                self._defer(client, message)
        elif isinstance(message, Probe):
            self._link.send(client, self._load(len(self._clients)))
        elif state is None or isinstance(message, Disconnect):
            self._drop_client(client)
        elif isinstance(message, TurnRequest):
            self._idle.interrupt(client)
            self._clients.enqueue(client)
        elif isinstance(message, (IdleRequest, IdlePass, IdlePacketMessage)):
            self._idle.receive(client, envelope)
        elif isinstance(message, Cancel):
            self._cancel(client)
        elif isinstance(message, (TokenPacketMessage, GlancePacketMessage, FramePacketMessage)):
            turn = self._scheduler.turns.get(client)
            if turn is not None and turn.may_take(message):
                turn.packet = envelope
            else:
                self._send(client, TurnExpired(turn=message.turn))
        else:
            error = TransportError(f"the answer server expected a packet, got {type(message).__name__}")
            self._refuse(client, error)

    def _on_unreadable(self, client: Client, error: TransportError) -> None:
        """Refuse a client whose unreadable message came in its turn: the client may await an answer to it."""
        turn = self._scheduler.turns.get(client)
        if turn is not None and turn.packet is None:
            self._refuse(client, error)

    def _refuse(self, client: Client, error: Exception) -> None:
        """Report an error to a client, which has to connect anew."""
        self._send(client, _error_reply(error))
        self._drop_client(client)

    def _cancel(self, client: Client) -> None:
        """Stop this client's answer, and drop its waiting packet and its request for a turn."""
        self._clients.dequeue(client)
        turn = self._scheduler.turns.get(client)
        if turn is None or turn.packet is not None:
            self._scheduler.release(client)

    def _defer(self, client: Client, message: Questions) -> None:
        """Keep a message for later, in place of those of the client that it makes obsolete."""
        if isinstance(message, Connect):
            before = []
        else:
            before = self._deferred_queries.get(client, [])
        self._deferred_queries[client] = [*(other for other in before if type(other) is not type(message)), message]

    def _take_deferred_queries(self) -> None:
        """Process the deferred queries: the last one of each client, and its last watches."""
        self._queries_taken.clear()
        queries = self._deferred_queries
        self._deferred_queries = {}
        for client, messages in queries.items():
            for message in messages:
                self._take_query(client, message)

    def _take_query(self, client: Client, message: Questions) -> None:
        """Process a message with questions, which the model then embeds."""
        if isinstance(message, Connect):
            self._connect_client(client, message)
        elif (state := self._clients.get(client)) is None:
            return
        elif isinstance(message, SetQuery):
            self._change_query(client, state, message.query)
        else:
            self._change_watches(client, state, message.watches)

    def _connect_client(self, client: Client, message: Connect) -> None:
        """Admit a client, or report why not."""
        if self._draining:
            return  # it looks for another server once this one is gone
        try:
            check_admission(message, self._options, self._clients)
            reply = _accepted_query(self._model, message.query)
            watches = [_accepted_watch(self._model, watch) for watch in dict.fromkeys(message.watches)]
            if message.schema is None:
                schema = None
            else:
                schema = AnswerSchema.parse(message.schema)
            if schema is not None:
                self._model.check_schema(schema)
        except Exception as error:
            self._note_unexpected(error)
            self._send(client, _error_reply(error))
            self._drop_client(client)
            return
        self._clients.add(client, message.query, message.watches, schema)
        pixels_refusal = self._packets.refused_pixels(message, self._model)
        if self._send(client, server_hello(self._model, self._provenance, pixels_refusal)):
            for watch in watches:
                self._send(client, *watch)
            self._send(client, *reply)

    def _change_query(self, client: Client, state: ClientState, query: str) -> None:
        try:
            reply = _accepted_query(self._model, query)
        except Exception as error:
            self._note_unexpected(error)
            reason = cut_to(describe(error), REASON_CHARS_MAX)
            self._send(client, QueryAccepted(query=query, model_id=self._model.model_id, error=reason))
            return
        state.query = query
        self._send(client, *reply)

    def _change_watches(self, client: Client, state: ClientState, watches: tuple[str, ...]) -> None:
        """Forget watches that are left out, and accept or refuse each new one."""
        before = state.watches
        state.watches = ()
        for watch in dict.fromkeys(watches):
            try:
                if watch in before:
                    reply = None
                else:
                    reply = _accepted_watch(self._model, watch)
            except Exception as error:
                self._note_unexpected(error)
                reason = cut_to(describe(error), REASON_CHARS_MAX)
                self._send(client, WatchAccepted(query=watch, model_id=self._model.model_id, error=reason))
                continue
            state.watches += (watch,)
            if reply is not None:
                self._send(client, *reply)

    def _note_unexpected(self, error: Exception) -> None:
        """Log an error that a model raises for a query. Raises `error` if the server is not shared."""
        if isinstance(error, (ArrCocError, StreamError)):
            return
        if not self._options.shared:
            raise error
        log.warning("a question failed: %s", describe(error))
        log.debug("the answer server continues", exc_info=True)

    def _drop_client(self, client: Client) -> None:
        self._clients.remove(client)
        self._deferred_queries.pop(client, None)
        self._scheduler.release(client)
        self._idle.drop(client)
        self._model.drop_client(client)

    def _send(self, client: Client, message: Message, arrays: Arrays = ()) -> bool:
        """Send a message, or drop a client that is gone; return whether the message was sent."""
        is_sent = self._link.send(client, message, arrays)
        if not is_sent:
            self._drop_client(client)
        return is_sent

    def on_scores(self, request: ClientRequest, scores: Sequence[tuple[float, float]], stats: AnswerStats) -> None:
        """Reply with the results of the checks."""
        self._statistics.count_checks(stats.tokens_used, len(scores))
        with_feedback = not request.wants_answer
        self._send(request.client, *_yes_no_reply(request.number, scores, stats, with_feedback=with_feedback))

    def on_piece(self, request: ClientRequest, piece: str) -> None:
        """Reply with a piece of an answer."""
        self._send(request.client, AnswerDelta(answer=request.number, text=piece))

    def on_answer(self, request: ClientRequest, stats: AnswerStats) -> None:
        """Reply with an answer that has ended."""
        self._statistics.count_answer(stats.text_tokens, stats.tokens_used)
        self._send(request.client, *answer_reply(request.number, request.query, "".join(request.pieces), stats))

    def on_failure(self, request: ClientRequest, error: Exception) -> None:
        """Report a failure to its client. It ends a server that is not shared, unless only this answer is lost."""
        if isinstance(error, AnswerLost):
            self._report_lost(request.client, request.number, error)
            return
        self._fail(request.client, error)

    def _fail(self, client: Client, error: Exception) -> None:
        """Refuse a client for a failure, and log it. Raises `error` if the server is not shared, unless a client caused
        it."""
        self._refuse(client, error)
        if not self._options.shared and not isinstance(error, TransportError):
            raise error
        log.warning("an answer failed: %s", describe(error))
        log.debug("the answer server continues", exc_info=error)

    def _report_lost(self, client: Client, answer: int | None, error: AnswerLost) -> None:
        """Report the loss of an answer, and grant no turn for as long as the model asks."""
        self._paused_until_ns = self._clock.now_ns() + round(error.wait_s * NS_PER_S)
        log.debug("an answer was lost: %s", describe(error))
        if answer is not None:
            self._send(client, RequestLost(answer=answer, reason=cut_to(describe(error), REASON_CHARS_MAX)))

    def _report_load_failure(self, reply: ErrorReply) -> None:
        """Report the failure to the first clients that connect within LOAD_FAILURE_NS; if shared, to all of them."""
        until_ns = self._clock.now_ns() + LOAD_FAILURE_NS
        is_reported = False
        while (
            (self._options.shared or not is_reported)
            and self._clock.now_ns() < until_ns
            and not self._control.cancelled
        ):
            arrival = self._link.receive(WAIT_MS)
            while arrival is not None:
                client, message = arrival
                if isinstance(message, Envelope) and isinstance(message.message, Connect):
                    is_reported = self._link.send(client, reply) or is_reported
                arrival = self._link.receive()


def _embed_query(model: AnswerModel, query: str) -> QueryEmbedding:
    """Return a query's embedding. Raises ContextLengthError if it is too long, or more than a server can send."""
    embedding = model.embed_query(query)
    if embedding.tokens.nbytes > REPLY_PART_BYTES_MAX:
        raise ContextLengthError(
            f"the question has {counted(len(embedding.tokens), 'token')}, more than the server can send; ask a "
            "shorter one"
        )
    return embedding


def _accepted_query(model: AnswerModel, query: str) -> tuple[QueryAccepted, Arrays]:
    """Return the message for a query that the model takes. Raises ContextLengthError for one that is too long."""
    embedding = _embed_query(model, query)
    message = QueryAccepted(query=query, model_id=embedding.model_id, arrays=specs_of(embedding.tokens))
    return message, [embedding.tokens]


def _accepted_watch(model: AnswerModel, query: str) -> tuple[WatchAccepted, Arrays]:
    """Return the message for a watch's question that the model can evaluate. Raises as `check_watch`."""
    embedding = _embed_query(model, query)
    unknown_words = model.check_watch(query)
    message = WatchAccepted(
        query=query,
        model_id=embedding.model_id,
        unseen_words=named_words(unknown_words),
        arrays=specs_of(embedding.tokens),
    )
    return message, [embedding.tokens]


def answer_reply(number: int, query: str, text: str, stats: AnswerStats) -> tuple[AnswerReply, Arrays]:
    """Return the message of an answer that has ended, and the arrays of its feedback.

    Args:
        number: number of the request.
        query: question of the answer.
        text: text of the answer.
        stats: costs, times and feedback of the answer.
    """
    arrays = feedback_arrays(stats.feedback)
    message = AnswerReply(
        answer=number,
        query=query,
        text=text,
        tokens_used=stats.tokens_used,
        text_tokens=stats.text_tokens,
        encode_ms=stats.encode_ms,
        prefill_ms=stats.prefill_ms,
        decode_ms=stats.decode_ms,
        frames=stats.frames,
        oldest_frame_ns=stats.oldest_frame_ns,
        kept_bytes=stats.kept_bytes,
        flops=stats.flops,
        full_flops=stats.full_flops,
        prefilled_tokens=stats.prefilled_tokens,
        appended_tokens=stats.appended_tokens,
        memory_tokens=stats.memory_tokens,
        same=stats.same,
        extent=stats.extent,
        notice=cut_to(stats.notice, REASON_CHARS_MAX),
        feedback_stamp=None if stats.feedback is None else stats.feedback.stamp,
        arrays=specs_of(*arrays),
    )
    return message, arrays


def _yes_no_reply(
    number: int, scores: Sequence[tuple[float, float]], stats: AnswerStats, *, with_feedback: bool
) -> tuple[YesNoReply, Arrays]:
    """Return the message of the results of checks, and the arrays of their feedback if that is included."""
    feedback = stats.feedback if with_feedback else None
    arrays = feedback_arrays(feedback)
    message = YesNoReply(
        answer=number,
        scores=tuple(CheckScore(*score) for score in scores),
        tokens_used=stats.tokens_used,
        encode_ms=stats.encode_ms,
        prefill_ms=stats.prefill_ms,
        kept_bytes=stats.kept_bytes,
        notice=cut_to(stats.notice, REASON_CHARS_MAX),
        feedback_stamp=None if feedback is None else feedback.stamp,
        arrays=specs_of(*arrays),
    )
    return message, arrays


def _glance_reply(number: int, query: str, stats: GlanceStats) -> tuple[GlanceReply, Arrays]:
    """Return the message of a glance, and the arrays of its feedback."""
    arrays = feedback_arrays(stats.feedback)
    message = GlanceReply(
        glance=number,
        query=query,
        tokens_used=stats.tokens_used,
        encode_ms=stats.encode_ms,
        prefill_ms=stats.prefill_ms,
        flops=stats.flops,
        feedback_stamp=stats.feedback.stamp,
        arrays=specs_of(*arrays),
    )
    return message, arrays


def _error_reply(error: Exception) -> ErrorReply:
    details = "".join(traceback.format_exception(error))
    return ErrorReply(
        error=type(error).__name__,
        message=cut_to(describe(error), REASON_CHARS_MAX),
        details=cut_to(details, DETAILS_CHARS_MAX),
    )
