"""Clients of an answer server that ask without a pause, in a process of their own, as clients are in a run.

In the server's process they would take its interpreter from it, at every call of torch.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType

from arr_coc.types import Question, TokenPacket
from stream.protocol.codec import token_message
from stream.protocol.messages import (
    AnswerReply,
    Connect,
    ErrorReply,
    ServerHello,
    TurnGrant,
    TurnRequest,
    YesNoReply,
)
from stream.transport import Link, LinkPoller, Transport

LIMIT_S = 120.0
POLL_MS = 100

Texts = tuple[tuple[str, ...], ...]
"""Answers of each client."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """A server's address, and what each client asks it: `query` about its packets one after the other, or `check`, a
    standing query, alone."""

    endpoint: str
    packets: Sequence[Sequence[TokenPacket]]
    query: str
    check: str | None = None


@dataclass(slots=True)
class Asker:
    """A client that asks about its packets, one after the other."""

    link: Link
    packets: Sequence[TokenPacket]
    question: Question
    left: int = 0
    texts: list[str] = field(default_factory=list)
    checks: int = 0

    def begin(self, answers: int) -> None:
        """Ask for `answers` answers."""
        self.left = answers
        self.link.send(TurnRequest())

    def turn(self) -> None:
        """Take in the messages that have arrived, and reply to them."""
        while self.left and (received := self.link.receive(0)) is not None:
            message = received.message
            if isinstance(message, ErrorReply):
                raise RuntimeError(message.message)
            if isinstance(message, TurnGrant):
                packet = self.packets[(len(self.texts) + self.checks) % len(self.packets)]
                self.link.send(*token_message(0, message.turn, packet, self.question))
            elif isinstance(message, AnswerReply):
                self.texts.append(message.text)
                self._next()
            elif isinstance(message, YesNoReply) and not self.question.wants_answer:
                self.checks += 1
                self._next()

    def _next(self) -> None:
        self.left -= 1
        if self.left:
            self.link.send(TurnRequest())


class ClientProcess:
    """Process of the clients; one server after another is asked by it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_pipe,), daemon=True)
        self._process.start()
        child_pipe.close()

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(LIMIT_S)

    def connect(self, options: ClientOptions) -> None:
        """Let each client connect to the server; those of the last one leave it."""
        self._pipe.send(options)
        self._reply()

    def ask(self, answers: int) -> Texts:
        """Let each client ask for `answers` answers; returns the answers of all, once they have arrived."""
        self._pipe.send(answers)
        return self._reply()

    def _reply(self) -> Texts:
        if not self._pipe.poll(LIMIT_S):
            raise TimeoutError(f"no answers within {LIMIT_S:g} s")
        reply: Texts | Exception = self._pipe.recv()
        if isinstance(reply, Exception):
            raise reply
        return reply


def _serve(pipe: Connection) -> None:
    """Do what the pipe asks for, until it is closed."""
    with ExitStack() as stack:
        askers: list[Asker] = []
        while True:
            try:
                request: ClientOptions | int = pipe.recv()
            except EOFError:
                return
            try:
                if isinstance(request, ClientOptions):
                    stack.close()
                    askers = _connect(request, stack)
                    pipe.send(())
                else:
                    pipe.send(_answers(askers, request))
            except Exception as error:
                pipe.send(error)


def _connect(options: ClientOptions, stack: ExitStack) -> list[Asker]:
    transport = Transport()
    stack.callback(transport.close)
    askers = []
    for packets in options.packets:
        link = transport.link(options.endpoint)
        stack.callback(link.close)
        link.send(Connect())
        received = link.receive(int(LIMIT_S * 1000))
        assert received is not None
        assert isinstance(received.message, ServerHello)
        checks = () if options.check is None else (options.check,)
        askers.append(Asker(link, packets, Question(options.query, wants_answer=not checks, checks=checks)))
    return askers


def _answers(askers: Sequence[Asker], answers: int) -> Texts:
    for asker in askers:
        asker.texts.clear()
        asker.begin(answers)
    poller, until_s = LinkPoller(*(asker.link for asker in askers)), time.monotonic() + LIMIT_S
    while any(asker.left for asker in askers):
        poller.wait(POLL_MS)
        for asker in askers:
            asker.turn()
        if time.monotonic() > until_s:
            raise TimeoutError(f"no answers within {LIMIT_S:g} s")
    return tuple(tuple(asker.texts) for asker in askers)
