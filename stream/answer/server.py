"""Answer server: loads the model, and answers the packets of its clients, one at a time, in fair turns."""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, TypeAlias

import numpy.typing as npt

from arr_coc.errors import ArrCocError, ContextLengthError, counted
from arr_coc.types import NS_PER_S
from stream.answer.client_table import ClientState, ClientTable, ServerOptions, check_admission, server_hello
from stream.answer.model import AnswerModel, AnswerStats, Packet
from stream.config import CLIENTS_MAX
from stream.control import WAIT_MS, CancelledError, RunControl, describe
from stream.errors import StreamError, TransportError
from stream.protocol.buffers import SnapshotReader
from stream.protocol.codec import feedback_arrays, frame_packet, specs_of, token_packet
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    Connect,
    Disconnect,
    ErrorReply,
    FramePacketMessage,
    KeepAlive,
    Message,
    QueryAccepted,
    SetQuery,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    YesNoReply,
)
from stream.transport import Client, Received, Transport
from stream.untrusted import (
    ANSWER_CHARS_MAX,
    DETAILS_CHARS_MAX,
    HEARD_AT_ONCE,
    PIECES_MAX,
    QUESTIONS_AT_ONCE,
    REASON_CHARS_MAX,
    REPLY_PART_BYTES_MAX,
    cut_to,
)

Parts = list[npt.NDArray[Any]]


def answered_message(number: int, query: str, text: str, spoken: AnswerStats) -> tuple[AnswerReply, Parts]:
    """An answer that has ended."""
    arrays = feedback_arrays(spoken.feedback)
    message = AnswerReply(
        answer=number,
        query=query,
        text=text,
        tokens_used=spoken.tokens_used,
        text_tokens=spoken.text_tokens,
        encode_ms=spoken.encode_ms,
        prefill_ms=spoken.prefill_ms,
        decode_ms=spoken.decode_ms,
        frames=spoken.frames,
        oldest_frame_ns=spoken.oldest_frame_ns,
        kept_bytes=spoken.kept_bytes,
        flops=spoken.flops,
        full_flops=spoken.full_flops,
        feedback_stamp=None if spoken.feedback is None else spoken.feedback.stamp,
        arrays=specs_of(*arrays),
    )
    return message, arrays


def looked_message(
    number: int, look: tuple[float, float], spoken: AnswerStats, *, teaches: bool
) -> tuple[YesNoReply, Parts]:
    """A look at a standing question; what it learnt goes along only where it `teaches`."""
    feedback = spoken.feedback if teaches else None
    arrays = feedback_arrays(feedback)
    yes, certain = look
    message = YesNoReply(
        answer=number,
        yes=yes,
        certain=certain,
        tokens_used=spoken.tokens_used,
        encode_ms=spoken.encode_ms,
        prefill_ms=spoken.prefill_ms,
        kept_bytes=spoken.kept_bytes,
        feedback_stamp=None if feedback is None else feedback.stamp,
        arrays=specs_of(*arrays),
    )
    return message, arrays


TURN_LIMIT_NS = 1 * NS_PER_S
"""A client that has not sent its packet for so long after it was granted a turn loses it."""

ALIVE_NS = 1 * NS_PER_S
"""How often every client is told that this stage is there, which also tells who is gone."""

LAST_WORDS_NS = 5 * NS_PER_S
"""How long a stage whose model failed to load waits for somebody to tell it to."""

Arrays: TypeAlias = Sequence[npt.NDArray[Any]]

log = logging.getLogger(__name__)


class AnswerServer:
    """Runs in its own process or thread. `snapshot` is where frames lie that are not in the message."""

    name = "answer"

    def __init__(
        self,
        load_model: Callable[[], AnswerModel],
        place: ServerOptions,
        transport: Transport,
        control: RunControl,
        snapshot: SnapshotReader | None = None,
    ) -> None:
        self._load_model = load_model
        self._place = place
        self._transport = transport
        self._control = control
        self._snapshot = snapshot
        self._guests = ClientTable()
        self._turn = 0
        self._granted: tuple[Client, int] | None = None
        self._granted_ns = 0
        self._alive_ns = 0
        self._packet: Received | None = None
        self._speaking_to: Client | None = None
        self._unwanted = False
        self._questions: Counter[Client] = Counter()
        self._late: dict[Client, Connect | SetQuery] = {}

    @property
    def drops(self) -> dict[str, int]:
        """Nothing: it is sent only what it asked for."""
        return {}

    def run(self) -> None:
        with closing(self._transport.port(self._place.endpoint, self._place.curve)) as self._port:
            try:
                self._speaker = self._load_model()
            except Exception as error:
                self._tell_whoever_comes(_failed(error))
                raise
            self._answering = self._place.answering()
            self._place.ready()
            while True:
                self._step()

    def _step(self) -> None:
        """Waits for whatever comes next, and does it. Raises CancelledError once the run is cancelled."""
        if self._granted is None and (client := self._guests.next()) is not None:
            self._grant(client)
        self._catch_up()
        self._listen(WAIT_MS)
        if self._granted is None:
            return
        if self._packet is not None:
            client, received = self._granted[0], self._packet
            self._granted = self._packet = None
            self._serve(client, received)
        elif time.monotonic_ns() - self._granted_ns > self._guests.patience_ns(self._granted[0], TURN_LIMIT_NS):
            self._guests.dawdled(self._granted[0])
            self._granted = None

    def _catch_up(self) -> None:
        """Looks at the questions for which there was no time before: the last one of each client."""
        self._questions.clear()
        late, self._late = self._late, {}
        for client, message in late.items():
            self._take_question(client, message)

    def _grant(self, client: Client) -> None:
        self._turn += 1
        if self._send(client, TurnGrant(turn=self._turn)):
            self._granted, self._granted_ns = (client, self._turn), time.monotonic_ns()

    def _listen(self, timeout_ms: int) -> None:
        """Hears what has come, from anybody; not all of it at once where somebody talks without end."""
        self._control.check()
        for number in range(HEARD_AT_ONCE):
            heard = self._port.receive(0 if number else timeout_ms)
            if heard is None:
                break
            self._hear(*heard)
        now_ns = time.monotonic_ns()
        if now_ns - self._alive_ns > ALIVE_NS:
            self._alive_ns = now_ns
            for client in self._guests:
                self._send(client, KeepAlive())

    def _hear(self, client: Client, received: Received) -> None:
        message = received.message
        guest = self._guests.find(client)
        if isinstance(message, Connect) or (isinstance(message, SetQuery) and guest is not None):
            self._questions[client] += 1
            if self._questions[client] <= QUESTIONS_AT_ONCE:
                self._take_question(client, message)
            elif client in self._late or len(self._late) < CLIENTS_MAX:
                self._late[client] = message
        elif guest is None or isinstance(message, Disconnect):
            self._dismiss(client)
        elif isinstance(message, TurnRequest):
            self._guests.want(client)
        elif isinstance(message, Cancel):
            self._cancel(client)
        elif isinstance(message, (TokenPacketMessage, FramePacketMessage)):
            if self._granted == (client, message.turn) and self._packet is None:
                self._packet = received
            else:
                self._send(client, TurnExpired(turn=message.turn))
        else:
            error = TransportError(f"the answer stage takes packets, got {type(message).__name__}")
            self._send(client, _failed(error))
            self._dismiss(client)

    def _cancel(self, client: Client) -> None:
        """What this client asked is not wanted: the answer that is being spoken, a packet that waits, and a turn."""
        self._guests.forgo(client)
        self._unwanted = self._unwanted or client == self._speaking_to
        if self._packet is not None and self._granted is not None and self._granted[0] == client:
            self._granted = self._packet = None

    def _take_question(self, client: Client, message: Connect | SetQuery) -> None:
        """Each costs the model something, and may come at any moment."""
        self._late.pop(client, None)
        if isinstance(message, Connect):
            self._welcome(client, message)
        elif (guest := self._guests.find(client)) is not None:
            self._change_question(client, guest, message.query)

    def _welcome(self, client: Client, message: Connect) -> None:
        """Takes a client in, or tells it why not."""
        try:
            check_admission(message, self._place, self._guests)
            asking = self._asking(client, message.query)
            unseen = () if message.standing_query is None else self._speaker.check_until(message.standing_query)
        except Exception as error:
            self._note_unexpected(error)
            self._send(client, _failed(error))
            self._guests.leave(client)
            self._speaker.forget(client)
            return
        self._guests.join(client, message.query, message.standing_query)
        if self._send(client, server_hello(self._speaker, self._answering, unseen)):
            self._send(client, *asking)

    def _change_question(self, client: Client, guest: ClientState, query: str) -> None:
        try:
            asking = self._asking(client, query)
        except Exception as error:
            self._note_unexpected(error)
            why = cut_to(describe(error), REASON_CHARS_MAX)
            self._send(client, QueryAccepted(query=query, model_id=self._speaker.model_id, error=why))
            return
        guest.query = query
        self._send(client, *asking)

    def _note_unexpected(self, error: Exception) -> None:
        """A question that a model trips over ends no stage that others use. Raises `error` where nobody else does."""
        if isinstance(error, (ArrCocError, StreamError)):
            return
        if not self._place.shared:
            raise error
        log.warning("a question failed: %s", describe(error))
        log.debug("the answer stage goes on", exc_info=True)

    def _asking(self, client: Client, query: str) -> tuple[QueryAccepted, Arrays]:
        self._speaker.attend(client)
        embedding = self._speaker.embed(query)
        if embedding.tokens.nbytes > REPLY_PART_BYTES_MAX:
            raise ContextLengthError(
                f"the question has {counted(len(embedding.tokens), 'token')}, more than can be told of it; ask a "
                "shorter one"
            )
        message = QueryAccepted(query=query, model_id=embedding.model_id, arrays=specs_of(embedding.tokens))
        return message, [embedding.tokens]

    def _dismiss(self, client: Client) -> None:
        self._guests.leave(client)
        self._late.pop(client, None)
        self._speaker.forget(client)
        if self._granted is not None and self._granted[0] == client:
            self._granted = self._packet = None
        self._unwanted = self._unwanted or client == self._speaking_to

    def _send(self, client: Client, message: Message, arrays: Arrays = ()) -> bool:
        """Whether the client was there; one that is gone is forgotten."""
        there = self._port.send(client, message, arrays)
        if not there:
            self._dismiss(client)
        return there

    def _serve(self, client: Client, received: Received) -> None:
        """Answers one packet. What fails is told to its sender, and ends a stage that is not shared."""
        guest = self._guests.find(client)
        if guest is None:
            return
        self._speaking_to, self._unwanted = client, False
        self._guests.hurried(client)
        try:
            self._answer(client, guest, received)
        except CancelledError:
            raise
        except Exception as error:
            self._send(client, _failed(error))
            self._guests.leave(client)
            self._speaker.forget(client)
            if not self._place.shared and not isinstance(error, TransportError):
                raise
            log.warning("an answer failed: %s", describe(error))
            log.debug("the answer stage goes on", exc_info=True)
        finally:
            self._speaking_to = None

    def _answer(self, client: Client, guest: ClientState, received: Received) -> None:
        number, packet, wants_answer = self._packet_of(received)
        query = guest.query
        pieces: list[str] = []
        if guest.standing_query is not None:
            self._look(client, guest, number, packet)
        if not wants_answer or self._unwanted:
            return
        self._speaker.attend(client)  # anew, as others may have asked something during the look
        chars = 0
        for piece in self._speaker.answer(packet, query, self._must_stop):
            piece = piece[: ANSWER_CHARS_MAX - chars]
            chars += len(piece)
            pieces.append(piece)
            if not self._unwanted and len(pieces) <= PIECES_MAX:
                self._send(client, AnswerDelta(answer=number, text=piece))
            if chars >= ANSWER_CHARS_MAX:
                break
        self._listen(0)
        if self._unwanted:
            return
        answered, arrays = answered_message(number, query, "".join(pieces), self._speaker.last)
        guest.answers += 1
        self._send(client, answered, arrays)

    def _look(self, client: Client, guest: ClientState, number: int, packet: Packet) -> None:
        """Looks whether the guest's standing question is answered with yes."""
        assert guest.standing_query is not None
        self._speaker.attend(client)
        look = self._speaker.look(packet, guest.standing_query)
        self._listen(0)
        if not self._unwanted:
            teaches = guest.standing_query == guest.query
            looked, arrays = looked_message(number, look, self._speaker.last, teaches=teaches)
            self._send(client, looked, arrays)

    def _packet_of(self, received: Received) -> tuple[int, Packet, bool]:
        """The number of the answer, what it is about, and whether it is to be spoken."""
        message, parts = received.message, received.parts
        if isinstance(message, TokenPacketMessage):
            return message.answer, token_packet(message, parts), message.wants_answer
        assert isinstance(message, FramePacketMessage)
        grid, image = message.grid, None
        if message.in_snapshot and self._snapshot is not None:
            image = self._snapshot.read(grid.padded_height_px, grid.padded_width_px)
        return message.answer, frame_packet(message, parts, image), message.wants_answer

    def _must_stop(self) -> bool:
        """Asked between tokens: whether nobody wants to hear the rest."""
        try:
            self._listen(0)
        except CancelledError:
            return True
        return self._unwanted

    def _tell_whoever_comes(self, failed: ErrorReply) -> None:
        """Gives the last words to the first clients that join, for a while; nobody may ever come."""
        until_ns = time.monotonic_ns() + LAST_WORDS_NS
        told = False
        while not told and time.monotonic_ns() < until_ns and not self._control.cancelled:
            heard = self._port.receive(WAIT_MS)
            while heard is not None:
                client, received = heard
                if isinstance(received.message, Connect):
                    told = self._port.send(client, failed) or told
                heard = self._port.receive()


def _failed(error: Exception) -> ErrorReply:
    details = "".join(traceback.format_exception(error))
    return ErrorReply(
        error=type(error).__name__,
        message=cut_to(describe(error), REASON_CHARS_MAX),
        details=cut_to(details, DETAILS_CHARS_MAX),
    )
