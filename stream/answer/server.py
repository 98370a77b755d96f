"""Answer server: loads the model, and answers the packets of its clients, one at a time, in fair turns."""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy.typing as npt

from arr_coc.errors import ArrCocError, ContextLengthError, counted
from arr_coc.types import NS_PER_S
from stream.answer.client_table import ClientState, ClientTable, ServerOptions, check_admission, server_hello
from stream.answer.model import AnswerModel, AnswerStats, GlanceStats, Packet
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

KEEP_ALIVE_NS = 1 * NS_PER_S
"""How often every client is sent a KeepAlive, which also shows who is gone."""

LOAD_FAILURE_NS = 5 * NS_PER_S
"""How long a server whose model failed to load waits for a client to report that to."""

Arrays: TypeAlias = Sequence[npt.NDArray[Any]]

log = logging.getLogger(__name__)


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
    ) -> None:
        self._pixels = pixels
        self._load_model = load_model
        self._options = options
        self._transport = transport
        self._control = control
        self._snapshot = snapshot
        self._clients = ClientTable()
        self._turn = 0
        self._granted: tuple[Client, int] | None = None
        self._granted_ns = 0
        self._glances = 0
        self._paused_until_ns = 0
        self._keep_alive_ns = 0
        self._packet: Envelope | None = None
        self._serving: Client | None = None
        self._unwanted = False
        self._queries_taken: Counter[Client] = Counter()
        self._deferred_queries: dict[Client, Connect | SetQuery] = {}

    @property
    def drops(self) -> dict[str, int]:
        """Nothing: the server is sent only what it asked for."""
        return {}

    def run(self) -> None:
        """Load the model, and serve clients until the run is cancelled."""
        with closing(self._transport.server_link(self._options.endpoint, self._options.curve)) as self._link:
            try:
                self._model = self._load_model()
            except Exception as error:
                self._report_load_failure(_error_reply(error))
                raise
            self._provenance = self._options.provenance()
            self._options.on_ready()
            while True:
                self._step()

    def _step(self) -> None:
        """Wait for whatever comes next, and do it. Raises CancelledError once the run is cancelled."""
        paused = time.monotonic_ns() < self._paused_until_ns
        if self._granted is None and not paused and (client := self._clients.pop_next()) is not None:
            self._grant(client)
        self._take_deferred_queries()
        self._receive(WAIT_MS)
        if self._granted is None:
            return
        client = self._granted[0]
        if self._packet is not None:
            self._serve_turn(client, self._packet)
        elif time.monotonic_ns() - self._granted_ns > self._clients.turn_limit_ns(client, TURN_LIMIT_NS):
            self._clients.turn_expired(client)
            self._revoke_turn()

    def _serve_turn(self, client: Client, received: Envelope) -> None:
        """Serve what the client sent in its turn. After a glance the turn goes on, and counts its time anew."""
        self._packet = None
        if not isinstance(received.message, GlancePacketMessage):
            self._revoke_turn()
            self._serve(client, received)
            return
        self._glances += 1
        self._serve(client, received)
        if self._unwanted and self._has_turn(client):
            self._revoke_turn()
        self._granted_ns = time.monotonic_ns()

    def _grant(self, client: Client) -> None:
        self._turn += 1
        if self._send(client, TurnGrant(turn=self._turn)):
            self._granted, self._granted_ns, self._glances = (client, self._turn), time.monotonic_ns(), 0

    def _revoke_turn(self) -> None:
        self._granted = self._packet = None

    def _has_turn(self, client: Client) -> bool:
        return self._granted is not None and self._granted[0] == client

    def _receive(self, timeout_ms: int) -> None:
        """Take in what has come, from any client; not all of it at once where one sends without end."""
        self._control.check()
        for number in range(HEARD_AT_ONCE):
            received = self._link.receive(0 if number else timeout_ms)
            if received is None:
                break
            client, message = received
            if isinstance(message, TransportError):
                self._on_unreadable(client, message)
            else:
                self._dispatch(client, message)
        now_ns = time.monotonic_ns()
        if now_ns - self._keep_alive_ns > KEEP_ALIVE_NS:
            self._keep_alive_ns = now_ns
            for client in self._clients:
                self._send(client, KeepAlive())

    def _dispatch(self, client: Client, received: Envelope) -> None:
        message = received.message
        state = self._clients.get(client)
        if isinstance(message, Connect) or (isinstance(message, SetQuery) and state is not None):
            self._queries_taken[client] += 1
            if self._queries_taken[client] <= QUESTIONS_AT_ONCE:
                self._take_query(client, message)
            elif client in self._deferred_queries or len(self._deferred_queries) < CLIENTS_MAX:
                self._deferred_queries[client] = message
        elif state is None or isinstance(message, Disconnect):
            self._drop_client(client)
        elif isinstance(message, TurnRequest):
            self._clients.enqueue(client)
        elif isinstance(message, Cancel):
            self._cancel(client)
        elif isinstance(message, (TokenPacketMessage, GlancePacketMessage, FramePacketMessage)):
            if self._granted == (client, message.turn) and self._packet is None and self._may_send(message):
                self._packet = received
            else:
                self._send(client, TurnExpired(turn=message.turn))
        else:
            error = TransportError(f"the answer server expected a packet, got {type(message).__name__}")
            self._refuse(client, error)

    def _may_send(self, message: Message) -> bool:
        """Return whether the turn allows this packet: not glance after glance, while others wait."""
        return not isinstance(message, GlancePacketMessage) or self._glances < GLANCES_A_TURN_MAX

    def _on_unreadable(self, client: Client, error: TransportError) -> None:
        """What a client sends in its turn may be the packet that it waits for an answer to."""
        if self._has_turn(client) and self._packet is None:
            self._refuse(client, error)

    def _refuse(self, client: Client, error: Exception) -> None:
        """Report an error to a client, which has to connect anew."""
        self._send(client, _error_reply(error))
        self._drop_client(client)

    def _cancel(self, client: Client) -> None:
        """Stop the answer that this client is given, and forget its packet that waits, and its request for a turn."""
        self._clients.dequeue(client)
        self._unwanted = self._unwanted or client == self._serving
        if self._packet is not None and self._has_turn(client):
            self._revoke_turn()

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
        standing_query = message.standing_query
        try:
            check_admission(message, self._options, self._clients)
            accepted = self._accept_query(client, message.query)
            unseen_words = () if standing_query is None else self._model.check_standing_query(standing_query)
        except Exception as error:
            self._note_unexpected(error)
            self._send(client, _error_reply(error))
            self._clients.remove(client)
            self._model.drop_client(client)
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
        self._model.drop_client(client)
        if self._has_turn(client):
            self._revoke_turn()
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
            if not self._options.shared and not isinstance(error, TransportError):
                raise
            log.warning("an answer failed: %s", describe(error))
            log.debug("the answer server goes on", exc_info=True)
        finally:
            self._serving = None

    def _lose(self, client: Client, request: Message, error: AnswerLost) -> None:
        """Report an answer that could not be had, and grant no turn for as long as the model asks."""
        self._paused_until_ns = time.monotonic_ns() + round(error.wait_s * NS_PER_S)
        log.debug("an answer was lost: %s", describe(error))
        if not self._unwanted and isinstance(request, (TokenPacketMessage, FramePacketMessage)):
            self._send(client, RequestLost(answer=request.answer, reason=cut_to(describe(error), REASON_CHARS_MAX)))

    def _glance(self, client: Client, state: ClientState, message: GlancePacketMessage, received: Envelope) -> None:
        """Reply where the model looks in an overview, asked the client's query."""
        packet, query = token_packet(message, received.parts, self._take_pixels), state.query
        self._model.select_client(client)
        found = self._model.glance(packet, query)
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
            self._send(client, *answer_reply(number, query, text, self._model.last_stats))

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
        """Report to the first clients that connect, for a while; none may ever come."""
        until_ns = time.monotonic_ns() + LOAD_FAILURE_NS
        reported = False
        while not reported and time.monotonic_ns() < until_ns and not self._control.cancelled:
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
