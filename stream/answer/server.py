"""Answer server: loads the model, and answers the packets of its clients in fair turns.

One answer at a time, or several together where the model has slots for them.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy.typing as npt

from arr_coc.errors import ArrCocError, ContextLengthError, counted
from arr_coc.types import NS_PER_S
from stream.answer.batching.scheduler import BatchRequest, BatchScheduler, batch_scheduler
from stream.answer.client_table import ClientState, ClientTable, ServerOptions, check_admission, server_hello
from stream.answer.model import AnswerModel, AnswerStats, GlanceStats, Packet
from stream.clock import Clock, MonotonicClock
from stream.control import WAIT_MS, CancelledError, RunControl, describe
from stream.errors import AnswerLost, StreamError, TransportError
from stream.protocol.buffers import SharedFrameReader
from stream.protocol.codec import feedback_arrays, frame_packet, specs_of, token_packet
from stream.protocol.device_pixels import PixelReceiver
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    Connect,
    Disconnect,
    ErrorReply,
    FramePacketMessage,
    GlancePacketMessage,
    GlanceReply,
    KeepAlive,
    Message,
    PixelPlace,
    Probe,
    QueryAccepted,
    RequestLost,
    SetQuery,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    YesNoReply,
)
from stream.transport import Client, Envelope, Transport
from stream.untrusted import (
    ANSWER_CHARS_MAX,
    CLIENTS_MAX,
    DETAILS_CHARS_MAX,
    GLANCES_A_TURN_MAX,
    HEARD_AT_ONCE,
    PIECES_MAX,
    QUESTIONS_AT_ONCE,
    REASON_CHARS_MAX,
    REPLY_PART_BYTES_MAX,
    cut_to,
)

if TYPE_CHECKING:
    import torch

TURN_LIMIT_NS = 1 * NS_PER_S
"""A client that has not sent its packet for so long after it was granted a turn loses it."""

GATHER_NS = 5 * NS_PER_S // 1000
"""For so long after a turn was granted, packets that came sooner wait for its own, where answers begin together: less
than one takes to begin."""

GATHER_MS = 1
"""How long such a wait lasts where nothing else is to be done."""

KEEP_ALIVE_NS = 1 * NS_PER_S
"""How often every client is sent a KeepAlive, which also shows who is gone."""

LOAD_FAILURE_NS = 5 * NS_PER_S
"""How long a server whose model failed to load waits for a client to report that to."""

Arrays: TypeAlias = Sequence[npt.NDArray[Any]]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Turn:
    """A turn of a client: its number, when it began or went on, glances so far, and the packet that has come."""

    number: int
    granted_ns: int
    glances: int = 0
    packet: Envelope | None = None

    def may_take(self, message: TokenPacketMessage | GlancePacketMessage | FramePacketMessage) -> bool:
        """Return whether the turn allows this packet: not a second one, nor glance after glance while others wait."""
        if message.turn != self.number or self.packet is not None:
            return False
        return not isinstance(message, GlancePacketMessage) or self.glances < GLANCES_A_TURN_MAX


class AnswerServer:
    """Stage that answers, in a process or thread of its own.

    `snapshot` holds frames that are not in the message, `pixels` finds those of tokens that are not.
    """

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
        self._pixels = pixels
        self._load_model = load_model
        self._options = options
        self._transport = transport
        self._control = control
        self._snapshot = snapshot
        self._statistics = options.statistics
        self._clients = ClientTable(self._statistics)
        self._turn = 0
        self._turns: dict[Client, _Turn] = {}
        self._batch: BatchScheduler | None = None
        self._paused_until_ns = 0
        self._keep_alive_ns = 0
        self._drain_announced = False
        self._serving: Client | None = None
        self._unwanted = False
        self._queries_taken: Counter[Client] = Counter()
        self._deferred_queries: dict[Client, Connect | SetQuery] = {}

    @property
    def drops(self) -> dict[str, int]:
        """Nothing: the server is sent only what it asked for."""
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
            self._batch = batch_scheduler(self._model, self, self._statistics)
            self._provenance = self._options.provenance()
            self._statistics.loaded()
            self._options.on_ready()
            while not (self._drain_announced and self._idle):
                self._step()

    @property
    def _draining(self) -> bool:
        """True once no more turns are granted."""
        return self._options.shared and self._control.ending and not self._control.cancelled

    @property
    def _idle(self) -> bool:
        """True if no client has a turn, and no answer is under way."""
        return not self._turns and (self._batch is None or not self._batch.busy)

    def _step(self) -> None:
        """Wait for whatever comes next, and do it. Raises CancelledError once the run is cancelled."""
        self._grant_turns()
        self._take_deferred_queries()
        self._receive(self._wait_ms)
        for client, turn in tuple(self._turns.items()):
            if self._turns.get(client) is not turn:
                continue
            if turn.packet is not None:
                self._serve_turn(client, turn, turn.packet)
            elif self._clock.now_ns() - turn.granted_ns > self._clients.turn_limit_ns(client, TURN_LIMIT_NS):
                self._clients.turn_expired(client)
                self._end_turn(client)
        if self._batch is not None:
            self._batch.advance(others_are_coming=self._is_gathering)

    @property
    def _wait_ms(self) -> int:
        """Time to wait for messages: none while answers are under way."""
        if self._batch is None or not self._batch.busy:
            return WAIT_MS
        return GATHER_MS if self._is_gathering and not self._batch.answering else 0

    @property
    def _is_gathering(self) -> bool:
        """True if a packet is due that could begin together with those that are there."""
        now_ns = self._clock.now_ns()
        return any(turn.packet is None and now_ns - turn.granted_ns < GATHER_NS for turn in self._turns.values())

    def _serve_turn(self, client: Client, turn: _Turn, received: Envelope) -> None:
        """Serve what the client sent in its turn. After a glance the turn goes on, and counts its time anew."""
        turn.packet = None
        if not isinstance(received.message, GlancePacketMessage):
            del self._turns[client]
            if self._batch is None:
                self._serve(client, received)
            else:
                self._add_to_batch(self._batch, client, received)
            return
        turn.glances += 1
        self._serve(client, received)
        if self._unwanted:
            self._end_turn(client)
        turn.granted_ns = self._clock.now_ns()

    def _grant_turns(self) -> None:
        """Grant as many turns as answers could begin now, to those that have waited longest."""
        if self._draining or self._clock.now_ns() < self._paused_until_ns:
            return
        while self._may_grant and (client := self._clients.pop_next(self._answered_clients)) is not None:
            self._turn += 1
            if self._send(client, TurnGrant(turn=self._turn)):
                self._turns[client] = _Turn(self._turn, self._clock.now_ns())
                if self._batch is not None:
                    self._batch.hold(client)

    @property
    def _may_grant(self) -> bool:
        return not self._turns if self._batch is None else self._batch.free > 0

    @property
    def _answered_clients(self) -> Collection[Client]:
        """Clients that have a turn, or whose answer is under way beside others."""
        return self._turns if self._batch is None else self._batch.held

    def _end_turn(self, client: Client) -> None:
        """Take a turn back, with what the client has sent in it; it may have none."""
        if self._turns.pop(client, None) is not None and self._batch is not None:
            self._batch.release(client)

    def _receive(self, timeout_ms: int) -> None:
        """Take in what has come, from any client; not all of it at once where one sends without end."""
        self._control.check()
        self._statistics.seen()
        for number in range(HEARD_AT_ONCE):
            received = self._link.receive(0 if number else timeout_ms)
            if received is None:
                break
            client, message = received
            if isinstance(message, TransportError):
                self._on_unreadable(client, message)
            else:
                self._dispatch(client, message)
        now_ns = self._clock.now_ns()
        if now_ns - self._keep_alive_ns > KEEP_ALIVE_NS or self._draining != self._drain_announced:
            self._keep_alive_ns, self._drain_announced = now_ns, self._draining
            for place, client in enumerate(self._clients):
                self._send(client, self._load(place))

    def _load(self, place: int) -> KeepAlive:
        """Return the load of this server, for the client at this place."""
        clients, slots = len(self._clients), self._statistics.slots
        return KeepAlive(clients=clients, slots=slots, place=place, draining=self._draining)

    def _dispatch(self, client: Client, received: Envelope) -> None:
        message = received.message
        state = self._clients.get(client)
        if isinstance(message, Connect) or (isinstance(message, SetQuery) and state is not None):
            self._queries_taken[client] += 1
            if self._queries_taken[client] <= QUESTIONS_AT_ONCE:
                self._take_query(client, message)
            elif client in self._deferred_queries or len(self._deferred_queries) < CLIENTS_MAX:
                self._deferred_queries[client] = message
        elif isinstance(message, Probe):
            self._link.send(client, self._load(len(self._clients)))
        elif state is None or isinstance(message, Disconnect):
            self._drop_client(client)
        elif isinstance(message, TurnRequest):
            self._clients.enqueue(client)
        elif isinstance(message, Cancel):
            self._cancel(client)
        elif isinstance(message, (TokenPacketMessage, GlancePacketMessage, FramePacketMessage)):
            turn = self._turns.get(client)
            if turn is not None and turn.may_take(message):
                turn.packet = received
            else:
                self._send(client, TurnExpired(turn=message.turn))
        else:
            error = TransportError(f"the answer server expected a packet, got {type(message).__name__}")
            self._refuse(client, error)

    def _on_unreadable(self, client: Client, error: TransportError) -> None:
        """What a client sends in its turn may be the packet that it waits for an answer to."""
        turn = self._turns.get(client)
        if turn is not None and turn.packet is None:
            self._refuse(client, error)

    def _refuse(self, client: Client, error: Exception) -> None:
        """Report an error to a client, which has to connect anew."""
        self._send(client, _error_reply(error))
        self._drop_client(client)

    def _cancel(self, client: Client) -> None:
        """Stop the answer that this client is given, and forget its packet that waits, and its request for a turn."""
        self._clients.dequeue(client)
        self._unwanted = self._unwanted or client == self._serving
        turn = self._turns.get(client)
        if turn is None and self._batch is not None:
            self._batch.release(client)
        elif turn is not None and turn.packet is not None:
            self._end_turn(client)

    def _take_deferred_queries(self) -> None:
        """Take the queries for which there was no time before: the last one of each client."""
        self._queries_taken.clear()
        deferred, self._deferred_queries = self._deferred_queries, {}
        for client, message in deferred.items():
            self._take_query(client, message)

    def _take_query(self, client: Client, message: Connect | SetQuery) -> None:
        """Take a query: each costs the model something, and may come at any moment."""
        self._deferred_queries.pop(client, None)
        if isinstance(message, Connect):
            self._connect_client(client, message)
        elif (state := self._clients.get(client)) is not None:
            self._change_query(client, state, message.query)

    def _connect_client(self, client: Client, message: Connect) -> None:
        """Admit a client, or report why not."""
        if self._draining:
            return  # it looks for another server once this one is gone
        standing_query = message.standing_query
        try:
            check_admission(message, self._options, self._clients)
            accepted = self._accept_query(client, message.query)
            unseen_words = () if standing_query is None else self._model.check_standing_query(standing_query)
        except Exception as error:
            self._note_unexpected(error)
            self._send(client, _error_reply(error))
            self._drop_client(client)
            return
        self._clients.add(client, message.query, standing_query)
        refused = self._refused_pixels(message)
        if self._send(client, server_hello(self._model, self._provenance, unseen_words, refused)):
            self._send(client, *accepted)

    def _refused_pixels(self, message: Connect) -> str | None:
        """Return why pixels do not stay on their device, "" if nobody would gain by it; None where they do."""
        if message.pixels_at is None or self._pixels is None or not self._model.takes_device_pixels:
            return ""
        return self._pixels.refusal(message.pixels_at)

    def _take_pixels(self, place: PixelPlace, count: int) -> torch.Tensor:
        if self._pixels is None:
            raise TransportError("pixels are said to lie on a device, and this link shares none")
        return self._pixels.take(place, count)

    def _change_query(self, client: Client, state: ClientState, query: str) -> None:
        try:
            accepted = self._accept_query(client, query)
        except Exception as error:
            self._note_unexpected(error)
            reason = cut_to(describe(error), REASON_CHARS_MAX)
            self._send(client, QueryAccepted(query=query, model_id=self._model.model_id, error=reason))
            return
        state.query = query
        self._send(client, *accepted)

    def _note_unexpected(self, error: Exception) -> None:
        """Log what a model raises for a query: it ends no shared server. Raises `error` where it is not shared."""
        if isinstance(error, (ArrCocError, StreamError)):
            return
        if not self._options.shared:
            raise error
        log.warning("a question failed: %s", describe(error))
        log.debug("the answer server goes on", exc_info=True)

    def _accept_query(self, client: Client, query: str) -> tuple[QueryAccepted, Arrays]:
        """Return the message for a query that the model takes. Raises ContextLengthError for one that is too long."""
        self._model.select_client(client)
        embedding = self._model.embed_query(query)
        if embedding.tokens.nbytes > REPLY_PART_BYTES_MAX:
            raise ContextLengthError(
                f"the question has {counted(len(embedding.tokens), 'token')}, more than the server can send; ask a "
                "shorter one"
            )
        message = QueryAccepted(query=query, model_id=embedding.model_id, arrays=specs_of(embedding.tokens))
        return message, [embedding.tokens]

    def _drop_client(self, client: Client) -> None:
        self._clients.remove(client)
        self._deferred_queries.pop(client, None)
        self._end_turn(client)
        if self._batch is not None:
            self._batch.release(client)
        self._model.drop_client(client)
        self._unwanted = self._unwanted or client == self._serving

    def _send(self, client: Client, message: Message, arrays: Arrays = ()) -> bool:
        """Send a message; returns whether the client was there, and drops one that is gone."""
        there = self._link.send(client, message, arrays)
        if not there:
            self._drop_client(client)
        return there

    def _serve(self, client: Client, received: Envelope) -> None:
        """Answer one packet, or glance at it. What fails is reported to its sender, and ends a server that is not
        shared."""
        state = self._clients.get(client)
        if state is None:
            return
        self._serving, self._unwanted = client, False
        try:
            with self._statistics.serving():
                if isinstance(received.message, GlancePacketMessage):
                    self._glance(client, state, received.message, received)
                else:
                    self._clients.turn_used(client)
                    self._answer(client, state, received)
        except CancelledError:
            raise
        except AnswerLost as error:
            self._lose(client, received.message, error)
        except Exception as error:
            self._refuse(client, error)
            self._log_failure(error)
        finally:
            self._serving = None

    def _add_to_batch(self, batch: BatchScheduler, client: Client, received: Envelope) -> None:
        """Let a packet be answered beside those of others."""
        state = self._clients.get(client)
        if state is None:
            batch.release(client)
            return
        try:
            number, packet, wants_answer = self._packet_of(received)
        except TransportError as error:
            self._refuse(client, error)
            return
        self._clients.turn_used(client)
        batch.add(BatchRequest(client, number, packet, state.query, state.standing_query, wants_answer))

    def on_score(self, request: BatchRequest, score: tuple[float, float], stats: AnswerStats) -> None:
        """Reply whether the standing query is answered with yes."""
        self._statistics.checked(stats.tokens_used)
        with_feedback = request.standing_query == request.query
        self._send(request.client, *_yes_no_reply(request.number, score, stats, with_feedback=with_feedback))

    def on_piece(self, request: BatchRequest, piece: str) -> None:
        """Reply with a piece of an answer."""
        self._send(request.client, AnswerDelta(answer=request.number, text=piece))

    def on_answer(self, request: BatchRequest, stats: AnswerStats) -> None:
        """Reply with an answer that has ended."""
        self._statistics.answered(stats.text_tokens, stats.tokens_used)
        self._send(request.client, *answer_reply(request.number, request.query, request.text, stats))

    def on_failure(self, request: BatchRequest, error: Exception) -> None:
        """Report what failed to its sender; it ends a server that is not shared, unless only this answer is lost."""
        if isinstance(error, AnswerLost):
            self._report_lost(request.client, request.number, error)
            return
        self._refuse(request.client, error)
        self._log_failure(error)

    def _log_failure(self, error: Exception) -> None:
        """Log the failure of an answer. Raises `error` where the server is not shared, unless a client is to blame."""
        if not self._options.shared and not isinstance(error, TransportError):
            raise error
        log.warning("an answer failed: %s", describe(error))
        log.debug("the answer server goes on", exc_info=error)

    def _lose(self, client: Client, request: Message, error: AnswerLost) -> None:
        """Report an answer that could not be had, where one was asked for and is still wanted."""
        asked = request if isinstance(request, (TokenPacketMessage, FramePacketMessage)) else None
        self._report_lost(client, None if asked is None or self._unwanted else asked.answer, error)

    def _report_lost(self, client: Client, answer: int | None, error: AnswerLost) -> None:
        """Report the loss of an answer, and grant no turn for as long as the model asks."""
        self._paused_until_ns = self._clock.now_ns() + round(error.wait_s * NS_PER_S)
        log.debug("an answer was lost: %s", describe(error))
        if answer is not None:
            self._send(client, RequestLost(answer=answer, reason=cut_to(describe(error), REASON_CHARS_MAX)))

    def _glance(self, client: Client, state: ClientState, message: GlancePacketMessage, received: Envelope) -> None:
        """Reply where the model looks in an overview, asked the client's query."""
        packet, query = token_packet(message, received.parts, self._take_pixels), state.query
        self._model.select_client(client)
        found = self._model.glance(packet, query)
        self._statistics.glanced(found.tokens_used)
        self._receive(0)
        if not self._unwanted:
            self._send(client, *_glance_reply(message.glance, query, found))

    def _answer(self, client: Client, state: ClientState, received: Envelope) -> None:
        number, packet, wants_answer = self._packet_of(received)
        query = state.query
        if state.standing_query is not None:
            self._evaluate_standing_query(client, state, state.standing_query, number, packet)
        if not wants_answer or self._unwanted:
            return
        self._model.select_client(client)  # anew, as others may have asked something meanwhile
        text = self._generate(client, number, packet, query)
        self._receive(0)
        if not self._unwanted:
            stats = self._model.last_stats
            self._statistics.answered(stats.text_tokens, stats.tokens_used)
            self._send(client, *answer_reply(number, query, text, stats))

    def _generate(self, client: Client, number: int, packet: Packet, query: str) -> str:
        """Return the text of an answer, whose pieces are sent as they come."""
        pieces: list[str] = []
        chars = 0
        for piece in self._model.answer(packet, query, self._must_stop):
            piece = piece[: ANSWER_CHARS_MAX - chars]
            chars += len(piece)
            pieces.append(piece)
            if not self._unwanted and len(pieces) <= PIECES_MAX:
                self._send(client, AnswerDelta(answer=number, text=piece))
            if chars >= ANSWER_CHARS_MAX:
                break
        return "".join(pieces)

    def _evaluate_standing_query(
        self, client: Client, state: ClientState, standing_query: str, number: int, packet: Packet
    ) -> None:
        """Reply whether the standing query is answered with yes."""
        self._model.select_client(client)
        score = self._model.score_yes_no(packet, standing_query)
        self._statistics.checked(self._model.last_stats.tokens_used)
        self._receive(0)
        if not self._unwanted:
            with_feedback = standing_query == state.query
            self._send(client, *_yes_no_reply(number, score, self._model.last_stats, with_feedback=with_feedback))

    def _packet_of(self, received: Envelope) -> tuple[int, Packet, bool]:
        """Return the number of the answer, its packet, and whether an answer is wanted."""
        message, parts = received.message, received.parts
        if isinstance(message, TokenPacketMessage):
            return message.answer, token_packet(message, parts, self._take_pixels), message.wants_answer
        assert isinstance(message, FramePacketMessage)
        grid, image = message.grid, None
        if message.in_snapshot and self._snapshot is not None:
            image = self._snapshot.read(grid.padded_height_px, grid.padded_width_px)
        return message.answer, frame_packet(message, parts, image), message.wants_answer

    def _must_stop(self) -> bool:
        """Return whether the rest of an answer is unwanted; asked between tokens."""
        try:
            self._receive(0)
        except CancelledError:
            return True
        return self._unwanted

    def _report_load_failure(self, reply: ErrorReply) -> None:
        """Report to the first clients that connect, for a while; none may ever come. If shared, to all of them."""
        until_ns = self._clock.now_ns() + LOAD_FAILURE_NS
        reported = False
        while (
            (self._options.shared or not reported) and self._clock.now_ns() < until_ns and not self._control.cancelled
        ):
            received = self._link.receive(WAIT_MS)
            while received is not None:
                client, message = received
                if isinstance(message, Envelope) and isinstance(message.message, Connect):
                    reported = self._link.send(client, reply) or reported
                received = self._link.receive()


def answer_reply(number: int, query: str, text: str, stats: AnswerStats) -> tuple[AnswerReply, Arrays]:
    """Return the message of an answer that has ended, and the arrays of its feedback."""
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
        notice=cut_to(stats.notice, REASON_CHARS_MAX),
        feedback_stamp=None if stats.feedback is None else stats.feedback.stamp,
        arrays=specs_of(*arrays),
    )
    return message, arrays


def _yes_no_reply(
    number: int, score: tuple[float, float], stats: AnswerStats, *, with_feedback: bool
) -> tuple[YesNoReply, Arrays]:
    """Return the message of a standing query's result, and the arrays of its feedback where that goes along."""
    feedback = stats.feedback if with_feedback else None
    arrays = feedback_arrays(feedback)
    yes, certain = score
    message = YesNoReply(
        answer=number,
        yes=yes,
        certain=certain,
        tokens_used=stats.tokens_used,
        encode_ms=stats.encode_ms,
        prefill_ms=stats.prefill_ms,
        kept_bytes=stats.kept_bytes,
        notice=cut_to(stats.notice, REASON_CHARS_MAX),
        feedback_stamp=None if feedback is None else feedback.stamp,
        arrays=specs_of(*arrays),
    )
    return message, arrays


def _glance_reply(number: int, query: str, found: GlanceStats) -> tuple[GlanceReply, Arrays]:
    """Return the message of a glance, and the arrays of its feedback."""
    arrays = feedback_arrays(found.feedback)
    message = GlanceReply(
        glance=number,
        query=query,
        tokens_used=found.tokens_used,
        encode_ms=found.encode_ms,
        prefill_ms=found.prefill_ms,
        flops=found.flops,
        feedback_stamp=found.feedback.stamp,
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
