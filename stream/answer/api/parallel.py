"""Several requests at once to an OpenAI-compatible server: `ApiBatchAnswerModel`, one request for each client."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stream.answer.api.connection import ChatStream
from stream.answer.api.model import ApiAnswerModel, ApiReply, SeenFrame, Served, connected, yes_no_of
from stream.answer.batching.scheduler import BatchQuestion
from stream.config import Config
from stream.untrusted import HEARD_AT_ONCE

STEP_S = 0.01
"""Longest wait for a piece of any answer, before clients are heard again."""


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request under way: its question, what is shown with it (the newest frame last), and its reply so far.

    `sent` is what the server was given of its `body`.
    """

    question: BatchQuestion
    shown: list[SeenFrame]
    body: dict[str, Any]
    sent: dict[str, Any]
    stream: ChatStream
    times_s: tuple[float, float]
    reply: ApiReply = field(default_factory=ApiReply)


class ApiBatchAnswerModel(ApiAnswerModel):
    """Model that a server answers for, with as many requests open as `answer.slots`: the server batches them.

    Texts are those of one request at a time; the server decides how far they depend on others.
    """

    def __init__(self, config: Config, served: Served) -> None:
        super().__init__(config, served)
        self.slots = config.answer.slots
        self._open: dict[bytes, OpenRequest] = {}
        self._arrived = threading.Event()

    def drop_client(self, client: bytes) -> None:
        self.release(client)
        super().drop_client(client)

    def hold(self, client: bytes) -> None:
        """Nothing is kept for a client before it asks."""

    def release(self, client: bytes) -> None:
        if (request := self._open.pop(client, None)) is not None:
            request.stream.cancel()

    def ask(self, questions: Sequence[BatchQuestion]) -> None:
        for question in questions:
            try:
                self._open[question.client] = self._opened(question)
            except Exception as error:
                question.ended, question.error = True, error

    def step(self) -> Sequence[BatchQuestion]:
        """Take in what has come for any request, after a short wait if nothing has."""
        self._arrived.wait(STEP_S)
        self._arrived.clear()
        requests = list(self._open.values())
        for request in requests:
            request.question.piece = ""
            try:
                self._take_in(request)
            except Exception as error:
                self._fail(request, error)
        return [request.question for request in requests]

    def finish(self, question: BatchQuestion) -> None:
        self._end(self._open[question.client])

    def _opened(self, question: BatchQuestion) -> OpenRequest:
        began_s = time.monotonic()
        packet = question.packet
        shown = [*self._window(question.client, packet.stamp), self._see(packet)]
        if question.yes_no:
            body = self._yes_no_body(shown, question.query)
        else:
            body = self._body(shown, question.query, self._answer.max_tokens)
        sent = self._sent.lean(body)
        stream = self._connection.stream(sent, self._arrived)
        return OpenRequest(question, shown, body, sent, stream, (began_s, time.monotonic()))

    def _take_in(self, request: OpenRequest) -> None:
        """Add the pieces that are there to the reply, not all of a flood at once, and end it if it has ended."""
        for _ in range(HEARD_AT_ONCE):
            piece = request.stream.take(0)
            if piece is None:
                break
            self._take(request.reply, piece)
            self._check_length(len(request.reply.text), request.body)
            if not request.question.yes_no:
                request.question.piece += piece.text
        if request.stream.ended:
            self._sent.note(request.body)
            self._end(request)

    def _end(self, request: OpenRequest) -> None:
        question, reply = request.question, request.reply
        self.release(question.client)
        question.ended = True
        question.stats = self._stats_of(request.shown, reply, request.times_s, request.body)
        if question.yes_no:
            question.score = yes_no_of(reply.text, reply.likely)
        else:
            self._keep(question.client, request.shown[-1])

    def _fail(self, request: OpenRequest, error: Exception) -> None:
        again = self._again(request.body, request.sent, error)
        request.stream.cancel()
        if again is not None:
            request.body, request.sent, request.reply = again, self._sent.lean(again), ApiReply()
            request.stream = self._connection.stream(request.sent, self._arrived)
            return
        del self._open[request.question.client]
        request.question.ended, request.question.error = True, error


def load_api_batch_model(config: Config) -> ApiBatchAnswerModel:
    """Return the model that `answer.api.url` serves, with `answer.slots`. Raises as `connected`."""
    return ApiBatchAnswerModel(config, connected(config))
