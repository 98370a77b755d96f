"""Answer server: loads the model, and answers the packets of its clients in fair turns, one in each of its slots."""

from __future__ import annotations

import logging
import traceback
from collections import deque
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
from stream.answer.model import AnswerModel, AnswerStats, ClientQuestion, Packet
from stream.answer.turns import ClientTable, SlotScheduler, Turn
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
    Embed,
    Embedded,
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
    RequestLost,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    YesNoReply,
)
from stream.transport import Client, Envelope, Transport
from stream.untrusted import (
    DETAILS_CHARS_MAX,
    EMBEDS_MAX,
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
        self._embeds: dict[Client, deque[Embed]] = {}

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
        is_free = self._scheduler.idle and not self._clients.is_any_waiting
        wait_ms = min(self._scheduler.wait_ms, self._idle.wait_ms(is_free=is_free))
        self._receive(0 if self._embeds else wait_ms)
        self._embed_questions()
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
        if isinstance(message, GlancePacketMessage):
            self._glance(client, turn, message, envelope)
            return
        assert isinstance(message, (TokenPacketMessage, FramePacketMessage))
        if self._options.encode not in (None, message.question.encode):
            self._refuse(client, TransportError(f"a packet is made for {message.question.encode}"))
            return
        try:
            if isinstance(message, FramePacketMessage):
                packet: Packet = self._packets.frame(envelope)
            else:
                packet = remember(self._model.memory, client, self._packets.tokens(envelope))
        except Exception as error:
            self._fail(client, error)
            return
        self._clients.turn_used(client)
        self._scheduler.begin(ClientQuestion(client, packet, message.question, message.answer))

    def _glance(self, client: Client, turn: Turn, message: GlancePacketMessage, envelope: Envelope) -> None:
        """Reply with the model's attention to an overview. The turn continues, and its time limit starts anew."""
        turn.glances += 1
        began_ns = self._statistics.turn_began()
        glance = None
        failed = True
        try:
            packet = remember(self._model.memory, client, self._packets.tokens(envelope))
            glance = self._model.glance(client, packet, message.text)
            failed = False
        except AnswerLost as error:
            self._report_lost(client, None, error)
        except Exception as error:
            self._fail(client, error)
            return
        finally:
            self._statistics.turn_ended(began_ns, failed=failed)
        if glance is not None:
            self._statistics.count_glance(glance.work.tokens_used)
            self._receive(0)  # a Cancel that came meanwhile takes the turn back
            if self._scheduler.turns.get(client) is not turn:
                return
            self._send(client, *_glance_reply(message.glance, glance))
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
        if isinstance(message, Connect):
            self._connect_client(client, message)
        elif isinstance(message, Probe):
            self._link.send(client, self._load(len(self._clients)))
        elif client not in self._clients or isinstance(message, Disconnect):
            self._drop_client(client)
        elif isinstance(message, Embed):
            waiting = self._embeds.setdefault(client, deque())
            if len(waiting) < EMBEDS_MAX:
                waiting.append(message)
            else:
                self._refuse(client, TransportError(f"more than {EMBEDS_MAX} questions wait to be embedded"))
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

    def _connect_client(self, client: Client, message: Connect) -> None:
        """Admit a client, or report why not."""
        if self._draining:
            return  # it looks for another server once this one is gone
        try:
            check_admission(message, self._clients)
        except TransportError as error:
            self._refuse(client, error)
            return
        self._clients.add(client)
        self._embeds.pop(client, None)
        pixels_refusal = self._packets.refused_pixels(message, self._model)
        self._send(client, server_hello(self._model, self._options, self._provenance, pixels_refusal))

    def _embed_questions(self) -> None:
        """Embed the questions that wait, a few of each client."""
        waiting_embeds = self._embeds
        self._embeds = {}
        for client, waiting in waiting_embeds.items():
            for _ in range(min(len(waiting), QUESTIONS_AT_ONCE)):
                self._send(client, *self._embedded(waiting.popleft()))
            if waiting and client in self._clients:
                self._embeds[client] = waiting

    def _embedded(self, message: Embed) -> tuple[Embedded, Arrays]:
        """Return the embedding of a question, or why it cannot be asked."""
        model = self._model
        unseen_words: tuple[str, ...] = ()
        try:
            tokens = _embed_query(model, message.text).tokens
            if message.is_check:
                unseen_words = named_words(model.check_watch(message.text))
            if message.schema is not None:
                model.check_schema(AnswerSchema.parse(message.schema))
        except Exception as error:
            self._note_unexpected(error)
            reply = Embedded(
                text=message.text,
                is_check=message.is_check,
                model_id=model.model_id,
                error=type(error).__name__,
                reason=cut_to(describe(error), REASON_CHARS_MAX),
            )
            return reply, ()
        reply = Embedded(
            text=message.text,
            is_check=message.is_check,
            model_id=model.model_id,
            unseen_words=unseen_words,
            arrays=specs_of(tokens),
        )
        return reply, [tokens]

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
        self._embeds.pop(client, None)
        self._scheduler.release(client)
        self._idle.drop(client)
        self._model.drop_client(client)

    def _send(self, client: Client, message: Message, arrays: Arrays = ()) -> bool:
        """Send a message, or drop a client that is gone; return whether the message was sent."""
        is_sent = self._link.send(client, message, arrays)
        if not is_sent:
            self._drop_client(client)
        return is_sent

    def on_scores(self, question: ClientQuestion, scores: Sequence[tuple[float, float]], stats: AnswerStats) -> None:
        """Reply with the results of the checks."""
        self._statistics.count_checks(stats.work.tokens_used, len(scores))
        with_feedback = not question.question.wants_answer
        self._send(question.client, *_yes_no_reply(question.number, scores, stats, with_feedback=with_feedback))

    def on_piece(self, question: ClientQuestion, piece: str) -> None:
        """Reply with a piece of an answer."""
        self._send(question.client, AnswerDelta(answer=question.number, text=piece))

    def on_answer(self, question: ClientQuestion, stats: AnswerStats) -> None:
        """Reply with an answer that has ended."""
        self._statistics.count_answer(stats.work.text_tokens, stats.work.tokens_used)
        self._send(question.client, *answer_reply(question.number, question.text, stats))

    def on_failure(self, question: ClientQuestion, error: Exception) -> None:
        """Report a failure to its client. It ends a server that is not shared, unless only this answer is lost."""
        if isinstance(error, AnswerLost):
            self._report_lost(question.client, question.number, error)
            return
        self._fail(question.client, error)

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


def answer_reply(number: int, text: str, stats: AnswerStats) -> tuple[AnswerReply, Arrays]:
    """Return the message of an answer that has ended, and the arrays of its feedback.

    Args:
        number: number of the request.
        text: text of the answer.
        stats: costs, times and feedback of the answer.
    """
    arrays = feedback_arrays(stats.feedback)
    message = AnswerReply(
        answer=number,
        text=text,
        work=stats.work,
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
        work=stats.work,
        notice=cut_to(stats.notice, REASON_CHARS_MAX),
        feedback_stamp=None if feedback is None else feedback.stamp,
        arrays=specs_of(*arrays),
    )
    return message, arrays


def _glance_reply(number: int, stats: AnswerStats) -> tuple[GlanceReply, Arrays]:
    """Return the message of a glance, and the arrays of its feedback."""
    arrays = feedback_arrays(stats.feedback)
    message = GlanceReply(
        glance=number,
        work=stats.work,
        feedback_stamp=None if stats.feedback is None else stats.feedback.stamp,
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
