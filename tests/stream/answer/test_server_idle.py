"""Answer server that reads ahead: packets between the answers of its clients, and turns that come first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from typing import ClassVar

from arr_coc.types import GroupPlace, TokenPacket
from stream.answer.memory import GroupMemory
from stream.answer.readings import KeptReading
from stream.config import Config
from stream.protocol.codec import idle_message
from stream.protocol.messages import Connect, IdleGrant, IdlePass, IdleReply, IdleRequest, ServerHello
from tests.support.answer_models import MemoryAnswerModel
from tests.support.answer_server import (
    TURN,
    Parts,
    Peer,
    Stage,
    Step,
    failed,
    granted,
    shows,
    together,
)
from tests.support.events import make_group_packet
from tests.support.network import until
from tests.support.scripts import Like, Script, case, cases, like


class StepwiseReading(KeptReading):
    """Keeps its packets once its model lets it end."""

    def __init__(
        self, model: ReadingAnswerModel, memory: GroupMemory, client: bytes, packets: Sequence[TokenPacket]
    ) -> None:
        super().__init__(memory, client, packets)
        self._model = model
        self.is_key_frame = packets[-1].place is not None and not packets[-1].place.frame

    def steps(self) -> Generator[None, None, None]:
        try:
            while not self._model.may_end.wait(0.001):
                self._model.steps += 1
                yield
        finally:
            self._model.ended += 1


class ReadingAnswerModel(MemoryAnswerModel):
    """Reads packets ahead in as many steps as it takes."""

    newest: ClassVar[ReadingAnswerModel]

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.memory = GroupMemory(config.answer.memory.tokens, 1.0)
        self.may_end = threading.Event()
        self.steps = self.ended = 0
        ReadingAnswerModel.newest = self

    def read_ahead(self, client: bytes, packets: Sequence[TokenPacket]) -> StepwiseReading:
        return StepwiseReading(self, self.memory, client, packets)


a, b, late = Peer("a"), Peer("b"), Peer("late", joins_later=True)

KEY_FRAME = shows(a, 1, (1, 0), 1, [(1, 2)])
"""The server has the key frame of a group."""
MAY_END = Step(lambda stage: ReadingAnswerModel.newest.may_end.set())
"""Readings end at their next step."""


def reads_on(stage: Stage) -> None:
    model = ReadingAnswerModel.newest
    steps = model.steps
    until(lambda: model.steps > steps)


READS_ON = Step(reads_on)


def given_up(count: int) -> Step:
    """Compare how many readings have ended, to their end or not."""

    def compare(stage: Stage) -> None:
        assert ReadingAnswerModel.newest.ended == count

    return Step(compare)


def idle_grant(number: int, kept: tuple[int, int] | None) -> IdleGrant:
    return IdleGrant(number=number, tokens=32, kept=None if kept is None else GroupPlace(*kept))


def idle_packet(number: int, place: tuple[int, int]) -> Parts:
    return idle_message(number, make_group_packet(place, second=2))


def reading(number: int, place: tuple[int, int]) -> Step:
    """`a` may read ahead a packet of the group (1, 1) and sends it."""
    return together(a >> IdleRequest(), a << idle_grant(number, (1, 1)), a >> idle_packet(number, place))


def read(number: int, kept: tuple[int, int], tokens: int = 2, **fields: bool) -> Like:
    return like(IdleReply, number=number, tokens=tokens, kept=GroupPlace(*kept), **fields)


@cases(
    *(
        case(
            f"a packet is read and the next answer builds on it, in_lockstep={in_lockstep}",
            [late >> Connect(), late << like(ServerHello, reads_ahead=True)],
            [KEY_FRAME, MAY_END, a >> IdleRequest(in_lockstep=in_lockstep), a << idle_grant(1, (1, 1))],
            [a >> idle_packet(1, (1, 1)), a << read(1, (1, 2), rebuilt=False)],
            [shows(a, 2, (1, 2), 3, [(1, 2), (2, 2), (3, 2)])],
        )
        for in_lockstep in (False, True)
    ),
    case(
        "a new group takes the place of the old one",
        [KEY_FRAME, MAY_END, reading(1, (2, 0)), a << read(1, (2, 1), rebuilt=True)],
        [shows(a, 2, (2, 1), 3, [(2, 2), (3, 2)])],
    ),
    case(
        "a turn of another client comes between two pieces of a reading, which goes on afterwards",
        [KEY_FRAME, reading(1, (1, 1)), READS_ON, shows(b, 2, (1, 0), 5, [(5, 2)]), READS_ON, given_up(0)],
        [MAY_END, a << read(1, (1, 2))],
    ),
    case(
        "the turn of its client ends a reading",
        [KEY_FRAME, reading(1, (1, 1)), READS_ON, shows(a, 2, (1, 1), 3, [(1, 2), (3, 2)]), given_up(1)],
    ),
    case(
        "answers about the old group come while a new one is read",
        [KEY_FRAME, reading(1, (2, 0)), READS_ON, shows(a, 2, (1, 1), 3, [(1, 2), (3, 2)]), given_up(0)],
        [MAY_END, a << read(1, (2, 1))],
    ),
    case(
        "a packet after its client requested a turn comes too late",
        [KEY_FRAME, a >> IdleRequest(), a << idle_grant(1, (1, 1)), a >> TURN, a << granted(2, (1, 1))],
        [a >> idle_packet(1, (1, 1)), a << read(1, (1, 1), tokens=0)],
    ),
    case(
        "a client that passes or leaves lets others read",
        [KEY_FRAME, MAY_END, shows(b, 2, (1, 0), 5, [(5, 2)]), a >> IdleRequest(), a << idle_grant(1, (1, 1))],
        [b >> IdleRequest(), a >> IdlePass(), b << idle_grant(2, (1, 1)), a >> IdleRequest(), b.vanishes],
        [a << idle_grant(3, (1, 1))],
    ),
    case(
        "a packet that does not go on with the group is refused",
        [KEY_FRAME, MAY_END, reading(1, (1, 7)), a << failed("builds on 7 frames")],
    ),
    case(
        "a server without idle time says so",
        [late >> Connect(), late << like(ServerHello, reads_ahead=False), late >> IdleRequest(in_lockstep=True)],
        [late.quiet],
        model=MemoryAnswerModel,
    ),
    model=ReadingAnswerModel,
    shared=True,
)
def test_readings(play: Callable[[Script], None], script: Script) -> None:
    play(script)
