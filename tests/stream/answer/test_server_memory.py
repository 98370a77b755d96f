"""Answer server that keeps groups of pictures of its clients: turns, evictions, and refused packets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from arr_coc.types import Question
from stream.answer.qwen import ClientSlots
from stream.config import Config
from stream.protocol.codec import specs_of
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    Connect,
    Disconnect,
    GlanceReply,
    ServerHello,
    YesNoReply,
)
from tests.support.answer_models import FakeAnswerModel, MemoryAnswerModel
from tests.support.answer_server import (
    TURN,
    Peer,
    answer,
    counted,
    expired,
    failed,
    glance,
    granted,
    group,
    packet,
    shown,
    shows,
)
from tests.support.events import make_group_packet
from tests.support.scripts import Script, case, cases, like

a, b, late = Peer("a"), Peer("b"), Peer("late", joins_later=True)
good, bad = Peer("good"), Peer("bad")

WATCH = Question("what?", checks=("is it there?",))
FEEDBACK = {
    "feedback_stamp": make_group_packet((1, 1), second=2).stamp,
    "arrays": specs_of(np.zeros((5, 3), np.int32), np.zeros(5, np.float32), np.zeros(5, np.float32)),
}
"""Fields of a reply with the feedback of five tokens."""


class SlotMemoryModel(MemoryAnswerModel):
    """Evicts as a Qwen model of one slot does."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._table = ClientSlots(1)

    def hold(self, client: bytes) -> None:
        if (evicted := self._table.hold(client)) is not None:
            self.memory.evict(evicted)

    def release(self, client: bytes) -> None:
        super().release(client)
        self._table.release(client)

    def drop_client(self, client: bytes) -> None:
        super().drop_client(client)
        self._table.drop(client)


def work(**tokens: int) -> dict[str, int]:
    return {f"{name}_tokens": count for name, count in tokens.items()}


@cases(
    case(
        "each turn reports what is kept and each answer is about the group",
        [late >> Connect(), late << like(ServerHello, memory_tokens=2048)],
        [late >> TURN, late << granted(1), late >> group(0, 1, (1, 0), second=1, count=4)],
        [late << answer(0, shown((1, 4)), work=work(appended=4, prefilled=9, memory=5))],
        [late >> TURN, late << granted(2, (1, 1)), late >> group(1, 2, (1, 1), second=2, count=1)],
        [late << answer(1, shown((1, 4), (2, 1)), work=work(appended=1, memory=6), **FEEDBACK)],
        [shows(late, 3, (1, 2), 3, [(1, 4), (2, 1), (3, 0)], count=0)],
        [late >> TURN, late << granted(4, (1, 2))],  # nothing was new in the last frame
    ),
    case(
        "a watch and an answer about one frame keep it once",
        [a >> TURN, a << granted(1), a >> group(0, 1, (1, 0), 1, question=replace(WATCH, wants_answer=False))],
        [a << YesNoReply, a >> TURN, a << granted(2, (1, 1)), a >> group(1, 2, (1, 0), 1, question=WATCH)],
        [a << YesNoReply, a << answer(1, shown((1, 2))), a >> TURN, a << granted(3, (1, 1))],
    ),
    case(
        "another question is about the same group",
        [shows(a, 1, (1, 0), 1, [(1, 2)])],
        [shows(a, 2, (1, 1), 1, [(1, 2), (1, 0)], count=0, question=Question("where is it"))],
    ),
    case(
        "a cancelled answer leaves its frame in the group",
        [shows(a, 1, (1, 0), 1, [(1, 2)]), a >> TURN, a << granted(2, (1, 1)), a >> group(1, 2, (1, 1), 2)],
        [a << AnswerDelta, a >> Cancel(), a >> TURN, a.awaits(granted(3, (1, 2)), AnswerReply)],
    ),
    case(
        "a turn that has ended leaves the group as it was",
        [shows(a, 1, (1, 0), 1, [(1, 2)]), a >> group(1, 1, (1, 1), 2), a << expired(1)],
        [shows(a, 2, (1, 1), 3, [(1, 2), (3, 2)])],
    ),
    case(
        "packets that the server lacks may be sent along",
        [a >> TURN, a << granted(1), a >> group(0, 1, (1, 3), 3, earlier=3)],
        [a << answer(0, shown((0, 2), (1, 2), (2, 2), (3, 2))), a >> TURN, a << granted(2, (1, 4))],
    ),
    case(
        "each client has its own memory, and none once it has left",
        [shows(a, 1, (1, 0), 1, [(1, 2)]), shows(b, 2, (1, 0), 2, [(2, 2)]), a >> Disconnect(), a >> Connect()],
        [a << ServerHello, a >> TURN, a << granted(3), a >> packet(0, turn=3), a << AnswerDelta, a << AnswerReply],
        [b >> TURN, b << granted(4, (1, 1))],
    ),
    case(
        "clients of one slot evict each other and that is counted",
        [shows(a, 1, (1, 0), 1, [(1, 2)]), shows(a, 2, (1, 1), 2, [(1, 2), (2, 2)])],
        [shows(b, 3, (1, 0), 3, [(3, 2)]), counted(groups=0, group_tokens=0, totals={"evictions": 1})],
        [shows(a, 4, (2, 0), 4, [(4, 2)]), a >> TURN, a << granted(5, (2, 1))],
        [counted(groups=1, totals={"evictions": 2})],
        model=SlotMemoryModel,
        shared=True,
    ),
    *(
        case(
            f"a packet is refused that {problem} and other clients go on",
            [shows(good, 1, (1, 0), 1, [(1, 2)]), bad >> TURN, bad << granted(2)],
            [bad >> group(0, 2, place, 0, count=count), bad << failed(problem)],
            [shows(good, 3, (1, 1), 2, [(1, 2), (2, 2)])],
        )
        for place, count, problem in (
            ((1, 1), 1, "builds on 1 frame, and the memory has None"),
            ((1, 0), 0, "holds nothing of a frame that others in its group of pictures build on"),
            ((1, 0), 2049, "shows 2049 tokens, of at most 2048"),
        )
    ),
    case(
        "a glance looks at the group and at what is new",
        [shows(a, 1, (1, 0), 1, [(1, 2)]), a >> TURN, a << granted(2, (1, 1))],
        [a >> glance(0, turn=2, packet=make_group_packet((1, 1), 0, 2))],
        [a << like(GlanceReply, work={"tokens_used": 2}), a >> group(1, 2, (1, 1), 2, count=1)],
        [a << answer(1, shown((1, 2), (2, 1)))],
    ),
    case(
        "packets without a place are complete in themselves",
        [shows(a, 1, (1, 0), 1, [(1, 2)]), a >> TURN, a << granted(2, (1, 1)), a >> packet(0, turn=2)],
        [a << answer(0, f"what? 7:{2 * 2 * 3 * 32 * 32}"), a >> TURN, a << granted(3, (1, 1))],
    ),
    case(
        "a server without memory reports it and refuses groups",
        [late >> Connect(), late << like(ServerHello, memory_tokens=0), late >> TURN, late << granted(1)],
        [late >> group(0, 1, (1, 0))],
        [late << failed("this answer server keeps no visual memory; start it with --memory")],
        model=FakeAnswerModel,
    ),
    model=MemoryAnswerModel,
)
def test_groups(play: Callable[[Script], None], script: Script) -> None:
    play(script)
