"""Clients of an answer server, their turns, and their questions in the slots of the model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from arr_coc.types import NS_PER_S, Question
from stream.answer.agreement import text_agreement
from stream.answer.model import AnswerModel, AnswerStats, ClientQuestion
from stream.answer.server_statistics import ServerStatistics
from stream.clock import Clock
from stream.control import WAIT_MS
from stream.protocol.messages import FramePacketMessage, GlancePacketMessage, TokenPacketMessage
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
    """State of one client. `penalty` rises with every turn that expired, and falls with those that were used."""

    penalty: int = 0


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

    def __contains__(self, client: bytes) -> bool:
        return client in self._clients

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

    def add(self, client: bytes) -> None:
        """Add a client; an existing one keeps its state."""
        self._clients.setdefault(client, ClientState())
        self._statistics.clients_are(len(self._clients))

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


def meaning_question(question: ClientQuestion) -> Question:
    """Return the check whether the answer and the one that it is compared with say the same."""
    first, second = (cut_to(text, HISTORY_CHARS_MAX) for text in (question.question.compared or "", question.text))
    text = SAME_MEANING.format(first=first, second=second)
    return Question(text, checks=(text,))


class Replies(Protocol):
    """Receiver of the results of questions: the server, which sends them on."""

    def on_scores(self, question: ClientQuestion, scores: Sequence[tuple[float, float]], stats: AnswerStats) -> None:
        """The checks were evaluated."""
        ...

    def on_piece(self, question: ClientQuestion, piece: str) -> None:
        """The answer has another piece."""
        ...

    def on_answer(self, question: ClientQuestion, stats: AnswerStats) -> None:
        """The answer has ended."""
        ...

    def on_failure(self, question: ClientQuestion, error: Exception) -> None:
        """The question failed."""
        ...


class SlotScheduler:
    """Scheduler of a model's slots: a client holds one from its turn to the end of its answer.

    New questions are encoded and prefilled together, between two steps of the others. `statistics` counts the questions
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
        self._serving: dict[Client, ClientQuestion] = {}
        self._new: list[ClientQuestion] = []
        self._open: set[ClientQuestion] = set()
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

    def begin(self, question: ClientQuestion) -> None:
        """Queue the question that a client has asked in its turn."""
        del self.turns[question.client]
        question.began_ns = self._statistics.turn_began()
        self._serving[question.client] = question
        self._new.append(question)

    def release(self, client: Client, *, failed: bool = False) -> None:
        """Release a client's turn, question and slot, if it has any."""
        turn = self.turns.pop(client, None)
        question = self._serving.pop(client, None)
        if turn is None and question is None:
            return
        if question is not None:
            self._new = [other for other in self._new if other is not question]
            self._open.discard(question)
            self._statistics.turn_ended(question.began_ns, failed=failed)
        self._model.release(client)

    def advance(self) -> None:
        """Report the results of the last step, and make the next one: begin new questions, unless others are to begin
        with them, or decode the next token of every answer.

        A step is reported after the clients' messages are received, so that no client gets more of an answer that it
        has cancelled.
        """
        step_questions = self._step_questions
        self._step_questions = ()
        for question in step_questions:
            if question in self._open:
                self._take_piece(question)
            if question.ended and question in self._open:  # not if its client was dropped meanwhile
                self._open.discard(question)
                self._end(question)
        if self._new and not self._is_gathering:
            self._step_questions = self._new
            self._new = []
            self._open.update(self._step_questions)
            self._model.ask(self._step_questions)
        elif self._open:
            self._step_questions = self._model.step()

    def _take_piece(self, question: ClientQuestion) -> None:
        piece = question.piece[: ANSWER_CHARS_MAX - question.chars]
        if not piece:
            return
        question.chars += len(piece)
        question.pieces.append(piece)
        if question.chars >= ANSWER_CHARS_MAX and not question.ended:
            self._model.finish(question)
        if len(question.pieces) <= PIECES_MAX:
            self._replies.on_piece(question, piece)

    def _end(self, question: ClientQuestion) -> None:
        """Report the end of a part, and go on with the next part if there is one."""
        stats = question.stats
        if question.error is not None:
            self.release(question.client, failed=True)
            self._replies.on_failure(question, question.error)
            return
        assert stats is not None
        if question.answer_stats is not None:
            ((yes, mass),) = question.scores
            answer_stats = question.answer_stats
            self.release(question.client)
            work = replace(answer_stats.work, flops=answer_stats.work.flops + stats.work.flops)
            self._replies.on_answer(question, replace(answer_stats, work=work, same=yes * mass))
        elif question.part.checks:
            self._replies.on_scores(question, question.scores, stats)
            if self._serving.get(question.client) is not question:
                return  # its client is gone
            if question.question.wants_answer:
                self._go_on(question, replace(question.question, checks=()))
            else:
                self.release(question.client)
        elif (compared := question.question.compared) is not None and not text_agreement(compared, question.text).same:
            question.answer_stats = stats
            self._go_on(question, meaning_question(question))
        else:
            self.release(question.client)
            self._replies.on_answer(question, stats)

    def _go_on(self, question: ClientQuestion, part: Question) -> None:
        question.ask(part)
        self._new.append(question)
