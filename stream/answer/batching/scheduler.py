"""Requests of several clients that are answered together: what a model needs for that, and their way to the replies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol, cast

from stream.answer.model import AnswerModel, AnswerStats, Packet
from stream.answer.server_statistics import ServerStatistics
from stream.untrusted import ANSWER_CHARS_MAX, PIECES_MAX


@dataclass(slots=True, eq=False)
class BatchQuestion:
    """A question of one client, and its answer while it is made.

    `yes_no`: it is scored, and ends at once with `score` (the probability of yes, given yes or no, and of yes or no at
    all). `piece`: the text that the last step completed; may be empty. `ended`: nothing more comes; then `stats` are
    there, or `error` says why there is no answer.
    """

    client: bytes
    packet: Packet
    query: str
    yes_no: bool = False
    piece: str = ""
    ended: bool = False
    error: Exception | None = None
    score: tuple[float, float] | None = None
    stats: AnswerStats | None = None


class BatchAnswerModel(AnswerModel, Protocol):
    """Contract of a model that answers several clients at once, each in one of its `slots`; others have no slots.

    A client holds a slot from its turn to the end of its answer.
    """

    slots: int

    def hold(self, client: bytes) -> None:
        """Keep a slot for the client; one is free."""
        ...

    def release(self, client: bytes) -> None:
        """Give the client's slot back, and say no more in it; it may hold none."""
        ...

    def ask(self, questions: Sequence[BatchQuestion]) -> None:
        """Begin with questions of clients that hold a slot each. What fails is the error of its own question."""
        ...

    def step(self) -> Sequence[BatchQuestion]:
        """One more token for every question that has not ended; returns them, also those that end with it."""
        ...

    def finish(self, question: BatchQuestion) -> None:
        """End an answer as it stands."""
        ...


@dataclass(slots=True, eq=False)
class BatchRequest:
    """A request that is answered beside others: its number, its packet, what is asked about it, and its answer so far.

    `standing_query` is evaluated first, where there is one.
    """

    client: bytes
    number: int
    packet: Packet
    query: str
    standing_query: str | None
    wants_answer: bool
    pieces: list[str] = field(default_factory=list)
    chars: int = 0

    @property
    def text(self) -> str:
        """Text of the answer so far."""
        return "".join(self.pieces)


class Replies(Protocol):
    """Receiver of what becomes of requests; the server, which sends it on."""

    def on_score(self, request: BatchRequest, score: tuple[float, float], stats: AnswerStats) -> None:
        """The standing query was evaluated."""
        ...

    def on_piece(self, request: BatchRequest, piece: str) -> None:
        """The answer goes on."""
        ...

    def on_answer(self, request: BatchRequest, stats: AnswerStats) -> None:
        """The answer has ended."""
        ...

    def on_failure(self, request: BatchRequest, error: Exception) -> None:
        """There will be no answer."""
        ...


class BatchScheduler:
    """Requests under way at a model that answers several at once: newcomers are encoded and prefilled between two
    steps of the others, all that are there together. `statistics` are told of requests that are served."""

    def __init__(self, model: BatchAnswerModel, replies: Replies, statistics: ServerStatistics) -> None:
        self._model = model
        self._replies = replies
        self._statistics = statistics
        self._statistics.slots = model.slots
        self._held: set[bytes] = set()
        self._served: dict[bytes, ExitStack] = {}
        self._new: list[BatchRequest] = []
        self._open: dict[BatchQuestion, BatchRequest] = {}

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return self._model.slots - len(self._held)

    @property
    def held(self) -> frozenset[bytes]:
        """Clients that hold a slot."""
        return frozenset(self._held)

    @property
    def busy(self) -> bool:
        """True if there is something to do."""
        return bool(self._new or self._open)

    @property
    def answering(self) -> bool:
        """True if an answer has begun, and has not ended."""
        return bool(self._open)

    def hold(self, client: bytes) -> None:
        """Keep a slot for a client that has got a turn."""
        self._held.add(client)
        self._model.hold(client)

    def release(self, client: bytes) -> None:
        """Drop what a client has asked, if anything, and give its slot back."""
        if client not in self._held:
            return
        self._held.discard(client)
        self._new = [request for request in self._new if request.client != client]
        self._open = {question: request for question, request in self._open.items() if request.client != client}
        self._model.release(client)
        if (served := self._served.pop(client, None)) is not None:
            served.close()

    def add(self, request: BatchRequest) -> None:
        """Take a request of a client that holds a slot."""
        self._new.append(request)
        self._served[request.client] = served = ExitStack()
        served.enter_context(self._statistics.serving())

    def advance(self, *, others_are_coming: bool = False) -> None:
        """Begin with the newcomers, unless others are to begin with them, and give every answer its next token."""
        while self._new and not others_are_coming:
            newcomers, self._new = self._new, []
            asked = {self._question(request): request for request in newcomers}
            self._open |= asked
            self._model.ask(list(asked))
            self._report(list(asked))
        if self._open:
            self._report(self._model.step())

    def _question(self, request: BatchRequest) -> BatchQuestion:
        standing = request.standing_query
        query = request.query if standing is None else standing
        return BatchQuestion(request.client, request.packet, query, yes_no=standing is not None)

    def _report(self, questions: Sequence[BatchQuestion]) -> None:
        """Report what came of questions. Whoever cannot be reached is dropped with that, and its request, too."""
        for question in questions:
            request = self._open.get(question)
            if request is not None:
                self._take_piece(question, request)
            if question.ended and self._open.pop(question, None) is request and request is not None:
                self._end(question, request)

    def _take_piece(self, question: BatchQuestion, request: BatchRequest) -> None:
        piece = question.piece[: ANSWER_CHARS_MAX - request.chars]
        if not piece:
            return
        request.chars += len(piece)
        request.pieces.append(piece)
        if request.chars >= ANSWER_CHARS_MAX and not question.ended:
            self._model.finish(question)
        if len(request.pieces) <= PIECES_MAX:
            self._replies.on_piece(request, piece)

    def _end(self, question: BatchQuestion, request: BatchRequest) -> None:
        if question.error is not None:
            self._served.pop(request.client).__exit__(type(question.error), question.error, None)
            self.release(request.client)
            self._replies.on_failure(request, question.error)
            return
        assert question.stats is not None
        if question.score is None:
            self.release(request.client)
            self._replies.on_answer(request, question.stats)
            return
        self._replies.on_score(request, question.score, question.stats)
        if request.client not in self._held:
            return
        if request.wants_answer:
            request.standing_query = None
            self._new.append(request)
        else:
            self.release(request.client)


def batch_scheduler(model: AnswerModel, replies: Replies, statistics: ServerStatistics) -> BatchScheduler | None:
    """Return a scheduler for a model with slots, None for one that answers one at a time."""
    return BatchScheduler(cast(BatchAnswerModel, model), replies, statistics) if hasattr(model, "slots") else None
