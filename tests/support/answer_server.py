"""An answer server in a thread, its clients, and scripts: which messages go in and out, in which order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import pytest

from arr_coc.types import FramePacket, FrameStamp, GroupPlace, Question, TileGrid, TokenPacket
from stream.answer import idle_work, server, turns
from stream.answer.admission import ServerOptions
from stream.answer.model import AnswerModel
from stream.answer.server import AnswerServer
from stream.answer.server_statistics import ServerStatistics
from stream.config import Config
from stream.protocol.buffers import SharedFrameReader
from stream.protocol.codec import glance_message, token_message
from stream.protocol.device_pixels import LocalPixels
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Connect,
    ErrorReply,
    KeepAlive,
    Message,
    ServerHello,
    TurnExpired,
    TurnGrant,
    TurnRequest,
)
from stream.stages.base import ALLOCATE_ANSWER
from stream.transport import Envelope, Link
from tests.support.answer_models import FakeAnswerModel
from tests.support.events import QUESTION, make_frame_packet, make_group_packet
from tests.support.network import LIMIT_MS
from tests.support.runs import StageRunner
from tests.support.scripts import Expected, Like, Script, check, check_fields, containing, like

STAMP = FrameStamp(7, 8, 9, 10)
SUM = 2 * 2 * 3 * 32 * 32
NS = 1
"""Turn limit that expires before anything can be sent."""
LONG = 1000 * LIMIT_MS * 1_000_000
"""Turn limit that never expires, in nanoseconds."""
TURN = TurnRequest()

M = TypeVar("M", bound=msgspec.Struct)
Parts: TypeAlias = tuple[Message, Sequence[np.ndarray]]
Sent: TypeAlias = Message | Parts


def serve(
    runner: StageRunner,
    model: Callable[[Config], AnswerModel] = FakeAnswerModel,
    snapshot: SharedFrameReader | None = None,
    pixels: LocalPixels | None = None,
    **place: Any,
) -> None:
    options = ServerOptions(ALLOCATE_ANSWER, **place)
    runner.start(
        AnswerServer(
            lambda: model(Config()), options, runner.transport, runner.control, snapshot=snapshot, pixels=pixels
        )
    )


class Client:
    """Client of the answer stage, as a frame process is one."""

    def __init__(
        self,
        runner: StageRunner,
        *,
        join: bool = True,
        query: str = "what is it",
        checks: tuple[str, ...] = (),
        **fields: Any,
    ) -> None:
        self.link: Link = runner.link(ALLOCATE_ANSWER)
        self.question = Question(query, checks=checks)
        if join:
            self.link.send(Connect(**fields))

    def receive(self, *past: type[Message]) -> Envelope:
        """Receive the next message of another kind than these."""
        until_s = time.monotonic() + LIMIT_MS / 1000
        while time.monotonic() < until_s and (received := self.link.receive(LIMIT_MS)) is not None:
            if not isinstance(received.message, past):
                return received
        raise AssertionError("no message came")

    def expect_whole(self, kind: type[M]) -> tuple[M, Envelope]:
        """Receive the next message other than KeepAlive, which must be of this kind."""
        received = self.receive(KeepAlive)
        assert isinstance(received.message, kind), f"{received.message} came"
        return received.message, received

    def expect(self, kind: type[M]) -> M:
        return self.expect_whole(kind)[0]

    def quiet(self, wait_ms: int = 30) -> bool:
        """Return whether only KeepAlive messages were received."""
        while (received := self.link.receive(wait_ms)) is not None:
            if not isinstance(received.message, KeepAlive):
                return False
        return True

    def greeted(self) -> Client:
        self.expect(ServerHello)
        return self

    def turn(self) -> int:
        self.link.send(TURN)
        return self.expect(TurnGrant).turn

    def ask(
        self,
        number: int = 0,
        turn: int | None = None,
        packet: TokenPacket | None = None,
        question: Question | None = None,
    ) -> None:
        turn_number = self.turn() if turn is None else turn
        self.link.send(*token_message(number, turn_number, packet or tokens(), question or self.question))

    def hear_answer(self) -> AnswerReply:
        for _ in range(2):
            self.expect(AnswerDelta)
        return self.expect(AnswerReply)


def tokens(index: int = 7) -> TokenPacket:
    regions = np.array([[0, 0, 0], [1, 0, 1]], np.int32)
    stamp = FrameStamp(index, 8, 9, 10)
    pixels = np.full((2, 3, 32, 32), 2, np.uint8)
    return TokenPacket(stamp, TileGrid.of(60, 90), regions, np.ones(2, np.float32), pixels)


def whole_frame() -> FramePacket:
    return make_frame_packet(STAMP, TileGrid.of(60, 90), 3)


@dataclass
class Stage:
    """A server, its clients by name, and the test's changes to the constants of the server."""

    runner: StageRunner
    patch: pytest.MonkeyPatch
    clients: dict[str, Client] = field(default_factory=dict)
    statistics: ServerStatistics = field(default_factory=ServerStatistics)

    def set_limits(self, limits: dict[str, object]) -> None:
        for name, value in limits.items():
            (module,) = (module for module in (server, turns, idle_work) if hasattr(module, name))
            self.patch.setattr(module, name, value)


@dataclass(frozen=True)
class Step:
    """Something that clients do or receive, or, without clients, that happens to the server."""

    run: Callable[[Stage], object]
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True)
class Peer:
    """A client in a script: `a >> message` is what it sends, `a << message` the next one that it must receive.

    All peers of a script are admitted before it begins, in the order of their first steps, unless they join later.
    """

    name: str
    joins_later: bool = False

    def __rshift__(self, sent: Sent) -> Step:
        parts = sent if isinstance(sent, tuple) else (sent,)
        return Step(lambda stage: stage.clients[self.name].link.send(*parts), (self,))

    def __lshift__(self, expected: Expected | Sequence[Expected]) -> Step:
        def receive(stage: Stage) -> None:
            for each in expected if isinstance(expected, list) else [expected]:
                past = () if isinstance(each, KeepAlive) else (KeepAlive,)
                check(stage.clients[self.name].receive(*past).message, each)

        return Step(receive, (self,))

    def awaits(self, expected: Message, *past: type[Message]) -> Step:
        """Receive this message, perhaps after pieces of an answer, other KeepAlive and messages of these kinds."""

        def receive(stage: Stage) -> None:
            until_s = time.monotonic() + LIMIT_MS / 1000
            while (message := stage.clients[self.name].receive().message) != expected:
                assert isinstance(message, (KeepAlive, AnswerDelta, *past)), f"{message} came"
                assert time.monotonic() < until_s, f"{expected} did not come"

        return Step(receive, (self,))

    def asks(self, number: int, turn: int, frame: int = 7, question: Question = QUESTION) -> Step:
        """Request a turn, which must be the one of this number, and send a packet in it."""
        return together(self >> TURN, self << granted(turn), self >> packet(number, turn, frame, question))

    @property
    def quiet(self) -> Step:
        """Receive nothing but KeepAlive."""

        def wait(stage: Stage) -> None:
            assert stage.clients[self.name].quiet(), f"{self.name} received a message"

        return Step(wait, (self,))

    @property
    def vanishes(self) -> Step:
        """Close the link without a message."""
        return Step(lambda stage: stage.clients[self.name].link.close(), (self,))


def together(*steps: Step) -> Step:
    """Do several steps as one."""

    def run(stage: Stage) -> None:
        for step in steps:
            step.run(stage)

    return Step(run, tuple(peer for step in steps for peer in step.peers))


def counted(**figures: Any) -> Step:
    """Compare these figures of the server."""
    return Step(lambda stage: check_fields(stage.statistics.figures(), figures))


def limits(**constants: object) -> Step:
    """Change these constants of the server."""
    return Step(lambda stage: stage.set_limits(constants))


END = Step(lambda stage: stage.runner.control.end())
"""The run of the server is to end."""
JOINED = Step(lambda stage: stage.runner.join())
"""The server has ended."""


def packet(number: int, turn: int, frame: int = 7, question: Question = QUESTION) -> Parts:
    return token_message(number, turn, tokens(frame), question)


def overview() -> TokenPacket:
    looked_at = tokens()
    looked_at.pixels[1] = 9
    return replace(looked_at, overview=2)


def glance(number: int, turn: int, packet: TokenPacket | None = None) -> Parts:
    return glance_message(number, turn, packet or overview(), "what?")


def group(
    number: int,
    turn: int,
    place: tuple[int, int],
    second: int = 0,
    count: int = 2,
    question: Question = QUESTION,
    earlier: int = 0,
) -> Parts:
    """A packet of a group of pictures, with as many `earlier` packets that the server lacks."""
    earlier_packets = [make_group_packet((place[0], number), second=number) for number in range(earlier)]
    group_packet = make_group_packet(place, count, second)
    return token_message(number, turn, group_packet, question, earlier_packets=earlier_packets)


def shown(*frames: tuple[int, int], query: str = "what?") -> str:
    """Answer of MemoryAnswerModel about these frames, each with its second and its tokens."""
    return " ".join([query, *(f"{second}:{second * count * 3 * 32 * 32}" for second, count in frames)])


def shows(
    peer: Peer,
    turn: int,
    place: tuple[int, int],
    second: int,
    frames: Sequence[tuple[int, int]],
    count: int = 2,
    question: Question = QUESTION,
) -> Step:
    """Ask about a group that goes on at this place; the answer is about these frames, as in `shown`."""
    kept = place if place[1] else None
    sent = group(0, turn, place, second, count, question)
    text = shown(*frames, query=question.text)
    return together(peer >> TURN, peer << granted(turn, kept), peer >> sent, peer << answer(0, text))


def granted(turn: int, kept: tuple[int, int] | None = None) -> Message:
    return TurnGrant(turn=turn, kept=None if kept is None else GroupPlace(*kept))


def expired(turn: int) -> Message:
    return TurnExpired(turn=turn)


def pieces(number: int, *texts: str) -> list[Expected]:
    return [AnswerDelta(answer=number, text=text) for text in texts]


def answer(number: int, *texts: str, **fields: Any) -> list[Expected]:
    """All pieces of an answer, and its reply; that of the fake model about frame 7 unless others are given."""
    texts = texts or about(7)
    return [*pieces(number, *texts), like(AnswerReply, answer=number, text="".join(texts), **fields)]


def about(frame: int) -> tuple[str, ...]:
    """Pieces of the fake model's answer about `tokens(frame)`."""
    return f"frame {frame}", f" sum {SUM}"


def failed(message: str, error: str = "TransportError") -> Like:
    """An error whose message contains this text."""
    return like(ErrorReply, error=error, message=containing(message))


def play(script: Script, runner: StageRunner, patch: pytest.MonkeyPatch) -> None:
    """Start a server, and do the steps of a script.

    An option in capitals is a constant of the server, whose limits of time are long unless it is given; `failure` is
    the beginning of the error with which the server ends. The others are those of `serve`.
    """
    stage = Stage(runner, patch)
    options = {"TURN_LIMIT_NS": LONG, "GRANT_LIMIT_NS": LONG, "GATHER_NS": 0, **script.options}
    failure = options.pop("failure", None)
    stage.set_limits({name: options.pop(name) for name in tuple(options) if name.isupper()})
    serve(runner, statistics=stage.statistics, **options)
    for peer in dict.fromkeys(peer for step in script.steps for peer in step.peers):
        stage.clients[peer.name] = Client(runner, join=not peer.joins_later)
        if not peer.joins_later:
            stage.clients[peer.name].greeted()
    for step in script.steps:
        step.run(stage)
    if failure is None:
        assert runner.control.failure is None
    else:
        error = runner.join()
        assert f"{type(error).__name__}: {error}".startswith(failure)
