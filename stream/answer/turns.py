"""Clients of an answer server, their turns, and their requests in the slots of the model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from arr_coc.answer_schema import AnswerSchema
from arr_coc.types import NS_PER_S
from stream.answer.model import AnswerModel, AnswerStats, ClientQuestion, Packet
from stream.answer.request import text_agreement
from stream.answer.server_statistics import ServerStatistics
from stream.clock import Clock
from stream.control import WAIT_MS
from stream.protocol.messages import (
    FramePacketMessage,
    GlancePacketMessage,
    History,
    PreviousAnswer,
    TokenPacketMessage,
)
from stream.transport import Client, Envelope
from stream.untrusted import (
    ANSWER_CHARS_MAX,
    CLIENTS_MAX,
    GLANCES_A_TURN_MAX,
    HISTORY_CHARS_MAX,
    PIECES_MAX,
    cut_to,
)

PENALTY_MAX = 6
"""Largest penalty: a client that lets turn after turn expire gets 1/64 of the time limit, 16 ms of a second."""

PENALTY_PER_EXPIRY = 2
"""Number of used turns that make up for an expired one."""

GATHER_NS = 5 * NS_PER_S // 1000
"""Time that requests wait for the packets of granted turns, to begin together; shorter than the start of a request."""

GATHER_MS = 1
"""Time of one receive during that wait, if no answer is under way."""


@dataclass(slots=True)
class ClientState:
    """State of one client: its query, the questions of its watches, and the schema of its answers.

    `penalty` rises with every turn that expired, and falls with those that were used.
    """

    query: str
    watches: tuple[str, ...] = ()
    penalty: int = 0
    schema: AnswerSchema | None = None


class ClientTable:
    """Table of the clients, and queue of those that wait for a turn, longest first.

    A client that had a turn queues behind all others, so each waits for at most one answer of every other client.
    `statistics` counts clients and waits.
    """

    def __init__(self, statistics: ServerStatistics | None = None) -> None:
        self._statistics = statistics or ServerStatistics()
        self._clients: dict[bytes, ClientState] = {}
        self._waiting: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[bytes]:
        return iter(tuple(self._clients))

    @property
    def is_any_waiting(self) -> bool:
        """True if a client waits for a turn."""
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        """True if no other client may connect."""
        return len(self._clients) >= CLIENTS_MAX

    def add(self, client: bytes, query: str, watches: tuple[str, ...] = (), schema: AnswerSchema | None = None) -> None:
        """Add a client, or replace the queries and the schema of an existing one.

        Args:
            client: routing id of the client.
            query: question of its answers.
            watches: questions of its watches.
            schema: schema of its answers; None for free text.
        """
        state = self._clients.get(client)
        self._clients[client] = ClientState(query, watches, 0 if state is None else state.penalty, schema)
        self._statistics.clients_are(len(self._clients))

    def get(self, client: bytes) -> ClientState | None:
        """Return the state of a client; None if it is not connected."""
        return self._clients.get(client)

    def remove(self, client: bytes) -> None:
        """Remove a client; it may be unknown."""
        self._clients.pop(client, None)
        self._statistics.clients_are(len(self._clients))
        self.dequeue(client)

    def enqueue(self, client: bytes) -> None:
        """Queue a client for a turn; a client that waits already keeps its place. Unknown clients are ignored."""
        if client in self._clients:
            self._waiting.setdefault(client, None)
            self._statistics.turn_requested(client)

    def dequeue(self, client: bytes) -> None:
        """Remove a client from the queue, if it waits."""
        self._waiting.pop(client, None)
        self._statistics.turn_withdrawn(client)

    def pop_next(self, busy: Collection[bytes] = ()) -> bytes | None:
        """Remove and return the client that has waited longest and is not `busy` with an answer; None without one."""
        client = next((client for client in self._waiting if client not in busy), None)
        if client is not None:
            del self._waiting[client]
            self._statistics.turn_granted(client)
        return client

    def turn_limit_ns(self, client: bytes, limit_ns: int) -> int:
        """Return the time limit of the client's turn: `limit_ns`, halved for each point of its penalty."""
        state = self._clients.get(client)
        return limit_ns >> (0 if state is None else state.penalty)

    def turn_expired(self, client: bytes) -> None:
        """Note that the client let a turn expire."""
        if (state := self._clients.get(client)) is not None:
            state.penalty = min(PENALTY_MAX, state.penalty + PENALTY_PER_EXPIRY)

    def turn_used(self, client: bytes) -> None:
        """Note that the client used its turn."""
        if (state := self._clients.get(client)) is not None:
            state.penalty = max(0, state.penalty - 1)


@dataclass(slots=True)
class Turn:
    """Turn of a client: its number, the start of its time limit, glances so far, and the packet that is being
    served."""

    number: int
    granted_ns: int
    glances: int = 0
    packet: Envelope | None = None

    def may_take(self, message: TokenPacketMessage | GlancePacketMessage | FramePacketMessage) -> bool:
        """Return whether the turn allows this packet: only one at a time, and at most GLANCES_A_TURN_MAX overviews."""
        if message.turn != self.number or self.packet is not None:
            return False
        return not isinstance(message, GlancePacketMessage) or self.glances < GLANCES_A_TURN_MAX


SAME_MEANING = 'Do these two answers say the same? "{first}" and "{second}"'
"""Question by which answers are compared for their meaning."""


@dataclass(slots=True, eq=False)
class ClientRequest:
    """Request that is being answered: its number, its packet, the questions about it, and its answer so far.

    `checks`, if any, are evaluated first. `history`, `previous` and `schema` as in ClientQuestion. `compared`: another
    answer about the packet, with which this one is compared; meanwhile `stats` are those of this one. `began_ns`: when
    the server began to serve it.
    """

    client: Client
    number: int
    packet: Packet
    query: str
    checks: tuple[str, ...]
    wants_answer: bool
    history: History = ()
    previous: PreviousAnswer | None = None
    schema: AnswerSchema | None = None
    compared: str | None = None
    stats: AnswerStats | None = None
    began_ns: int = 0
    pieces: list[str] = field(default_factory=list)
    chars: int = 0

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self.pieces)

    def next_question(self) -> ClientQuestion:
        """Return the next question."""
        if self.stats is not None:
            first, second = (cut_to(text, HISTORY_CHARS_MAX) for text in (self.compared or "", self.text))
            question = SAME_MEANING.format(first=first, second=second)
            return ClientQuestion(self.client, self.packet, question, checks=(question,))
        if self.checks:
            return ClientQuestion(self.client, self.packet, self.checks[0], checks=self.checks)
        return ClientQuestion(
            self.client, self.packet, self.query, history=self.history, previous=self.previous, schema=self.schema
        )


class Replies(Protocol):
    """Receiver of the results of requests: the server, which sends them on."""

    def on_scores(self, request: ClientRequest, scores: Sequence[tuple[float, float]], stats: AnswerStats) -> None:
        """The checks were evaluated."""
        ...

    def on_piece(self, request: ClientRequest, piece: str) -> None:
        """The answer has another piece."""
        ...

    def on_answer(self, request: ClientRequest, stats: AnswerStats) -> None:
        """The answer has ended."""
        ...

    def on_failure(self, request: ClientRequest, error: Exception) -> None:
        """The request failed."""
        ...


class SlotScheduler:
    """Scheduler of a model's slots: a client holds one from its turn to the end of its answer.

    New requests are encoded and prefilled together, between two steps of the others. `statistics` counts the requests
    that are served.
    """

    def __init__(self, model: AnswerModel, replies: Replies, statistics: ServerStatistics, clock: Clock) -> None:
        self._model = model
        self._replies = replies
        self._statistics = statistics
        self._clock = clock
        self._statistics.slots = model.slots
        self.turns: dict[Client, Turn] = {}
        self._last_turn = 0
        self._serving: dict[Client, ClientRequest] = {}
        self._new: list[ClientRequest] = []
        self._open: dict[ClientQuestion, ClientRequest] = {}
        self._step_questions: Sequence[ClientQuestion] = ()

    @property
    def holders(self) -> Collection[Client]:
        """Clients that hold a slot."""
        return self.turns.keys() | self._serving.keys()

    @property
    def has_room(self) -> bool:
        """True if a slot is free."""
        return len(self.turns) + len(self._serving) < self._model.slots

    @property
    def idle(self) -> bool:
        """True if no client has a turn, and no answer is under way."""
        return not self.turns and not self._serving

    @property
    def wait_ms(self) -> int:
        """Time to wait for messages: none while answers are under way."""
        if not self._serving:
            return WAIT_MS
        if self._is_gathering and not self._open:
            return GATHER_MS
        return 0

    @property
    def _is_gathering(self) -> bool:
        """True if a packet is due that could begin together with those received."""
        now_ns = self._clock.now_ns()
        return any(turn.packet is None and now_ns - turn.granted_ns < GATHER_NS for turn in self.turns.values())

    def grant(self, client: Client) -> Turn:
        """Grant a client a turn and a slot; a slot must be free."""
        self._last_turn += 1
        self.turns[client] = turn = Turn(self._last_turn, self._clock.now_ns())
        self._model.hold(client)
        return turn

    def begin(self, request: ClientRequest) -> None:
        """Queue the request that a client has made in its turn."""
        del self.turns[request.client]
        request.began_ns = self._statistics.turn_began()
        self._serving[request.client] = request
        self._new.append(request)

    def release(self, client: Client, *, failed: bool = False) -> None:
        """Release a client's turn, request and slot, if it has any."""
        turn = self.turns.pop(client, None)
        request = self._serving.pop(client, None)
        if turn is None and request is None:
            return
        if request is not None:
            self._new = [other for other in self._new if other is not request]
            self._open = {question: other for question, other in self._open.items() if other is not request}
            self._statistics.turn_ended(request.began_ns, failed=failed)
        self._model.release(client)

    def advance(self) -> None:
        """Report the results of the last step, and make the next one: begin new requests, unless others are to begin
        with them, or decode the next token of every answer.

        A step is reported after the clients' messages are received, so that no client gets more of an answer that it
        has cancelled.
        """
        step_questions = self._step_questions
        self._step_questions = ()
        self._report(step_questions)
        if self._new and not self._is_gathering:
            requests = self._new
            self._new = []
            questions = {request.next_question(): request for request in requests}
            self._open |= questions
            self._step_questions = list(questions)
            self._model.ask(self._step_questions)
        elif self._open:
            self._step_questions = self._model.step()

    def _report(self, questions: Sequence[ClientQuestion]) -> None:
        """Report the results of questions. A client that cannot be reached is dropped, and its request with it."""
        for question in questions:
            request = self._open.get(question)
            if request is not None:
                self._take_piece(question, request)
            if question.ended and self._open.pop(question, None) is request and request is not None:
                self._end(question, request)

    def _take_piece(self, question: ClientQuestion, request: ClientRequest) -> None:
        piece = question.piece[: ANSWER_CHARS_MAX - request.chars]
        if not piece:
            return
        request.chars += len(piece)
        request.pieces.append(piece)
        if request.chars >= ANSWER_CHARS_MAX and not question.ended:
            self._model.finish(question)
        if len(request.pieces) <= PIECES_MAX:
            self._replies.on_piece(request, piece)

    def _end(self, question: ClientQuestion, request: ClientRequest) -> None:
        if question.error is not None:
            self.release(request.client, failed=True)
            self._replies.on_failure(request, question.error)
            return
        assert question.stats is not None
        if request.stats is not None:
            ((yes, mass),) = question.scores
            stats = replace(request.stats, same=yes * mass, flops=request.stats.flops + question.stats.flops)
            self.release(request.client)
            self._replies.on_answer(request, stats)
            return
        if not question.checks:
            if request.compared is not None and not text_agreement(request.compared, request.text).same:
                request.stats = question.stats
                self._new.append(request)
                return
            self.release(request.client)
            self._replies.on_answer(request, question.stats)
            return
        self._replies.on_scores(request, question.scores, question.stats)
        if self._serving.get(request.client) is not request:
            return
        if request.wants_answer:
            request.checks = ()
            self._new.append(request)
        else:
            self.release(request.client)
