"""Server with a model of several slots: turns, interleaved answers, and isolation of clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from arr_coc.types import Question, Work
from stream.answer.model import AnswerStats, ClientQuestion
from stream.config import Config
from stream.errors import AnswerLost
from stream.protocol.messages import (
    AnswerReply,
    Cancel,
    CheckScore,
    Connect,
    Disconnect,
    ErrorReply,
    GlanceReply,
    KeepAlive,
    Probe,
    RequestLost,
    ServerHello,
    YesNoReply,
)
from tests.support.answer_models import GlancingAnswerModel
from tests.support.answer_server import (
    END,
    JOINED,
    LONG,
    NS,
    TURN,
    Peer,
    Stage,
    Step,
    counted,
    expired,
    failed,
    glance,
    granted,
    packet,
    pieces,
    together,
)
from tests.support.scripts import Script, case, cases, like

STEPS = 2
"""Number of pieces of an answer after its first."""

UNANSWERABLE = 13
"""Index of a frame whose answer fails."""

LOST = 14
"""Index of a frame whose answer is lost."""


class SlotAnswerModel(GlancingAnswerModel):
    """Model with two slots. Answers with the frame's number and, STEPS times, its client's question; a step needs a
    permit."""

    slots = 2
    newest: ClassVar[SlotAnswerModel]

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._slots: dict[bytes, list[ClientQuestion]] = {}
        self.permits = threading.Semaphore(0)
        self.batch_sizes: list[int] = []
        """Number of answers generated together, at each step."""
        self.request_counts: list[int] = []
        """Number of answers begun together, each time."""
        SlotAnswerModel.newest = self

    def hold(self, client: bytes) -> None:
        assert len(self._slots) < self.slots
        assert client not in self._slots
        self._slots[client] = []

    def release(self, client: bytes) -> None:
        del self._slots[client]

    def ask(self, questions: Sequence[ClientQuestion]) -> None:
        self.request_counts.append(len(questions))
        for question in questions:
            if question.packet.stamp.frame_index == UNANSWERABLE:
                question.error, question.ended = ArithmeticError("the spoon is bent"), True
            elif question.packet.stamp.frame_index == LOST:
                question.error, question.ended = AnswerLost("the network failed", wait_s=0.0), True
            elif question.part.checks:
                question.scores = ((0.75, 0.5),) * len(question.part.checks)
                question.ended, question.stats = True, stats_of(question)
            else:
                self._slots[question.client] = [question]
                question.piece = str(question.packet.stamp.frame_index)

    def step(self) -> Sequence[ClientQuestion]:
        if not self.permits.acquire(timeout=0.005):
            return []
        speaking = [question for (question,) in filter(None, self._slots.values())]
        self.batch_sizes.append(len(speaking))
        for question in speaking:
            pieces = question.stats.work.text_tokens + 1 if question.stats else 1
            question.piece, question.stats = f" {question.part.text}", stats_of(question, pieces)
            if pieces == STEPS:
                question.ended = True
                self._slots[question.client] = []
        return speaking

    def finish(self, question: ClientQuestion) -> None:
        question.ended, question.piece = True, ""
        self._slots[question.client] = []


def stats_of(question: ClientQuestion, text_tokens: int = 0) -> AnswerStats:
    return AnswerStats(Work(len(question.packet.regions), text_tokens, 1.0, 2.0, 3.0))  # type: ignore[union-attr]


red, green, blue, black, late = *map(Peer, ("red", "green", "blue", "black")), Peer("late", joins_later=True)


def allow(steps: int = STEPS) -> Step:
    return Step(lambda stage: SlotAnswerModel.newest.permits.release(steps))


def together_were(*, steps: Sequence[int] = (), requests: Sequence[int] = ()) -> Step:
    """Compare how many answers the first steps and requests were about."""

    def compare(stage: Stage) -> None:
        model = SlotAnswerModel.newest
        assert model.batch_sizes[: len(steps)] == list(steps)
        assert model.request_counts[: len(requests)] == list(requests)

    return Step(compare)


def begins(peer: Peer, number: int, turn: int, frame: int) -> Step:
    """Ask, and receive the first piece."""
    return together(peer >> TURN, begins_in(peer, number, turn, frame))


def begins_in(peer: Peer, number: int, turn: int, frame: int) -> Step:
    """Ask in a turn that was requested before, and receive the first piece."""
    sent = packet(number, turn, frame, Question(peer.name))
    return together(peer << granted(turn), peer >> sent, peer << pieces(number, str(frame)))


def ends(peer: Peer, number: int, frame: int) -> Step:
    """Receive the rest of an answer that has begun."""
    rest = [f" {peer.name}"] * STEPS
    return peer << [*pieces(number, *rest), like(AnswerReply, answer=number, text="".join([str(frame), *rest]))]


TWO_BEGIN = together(begins(red, 0, 1, 1), begins(green, 0, 2, 2))
CHECK = Question("green", checks=("is it there",))


@cases(
    case(
        "each slot grants a turn and each client receives only its own answer",
        [begins(red, 5, 1, 10), begins(green, 6, 2, 20), blue >> TURN, blue.quiet, allow()],
        [ends(red, 5, 10), ends(green, 6, 20), together_were(steps=[2, 2])],
        [begins_in(blue, 7, 3, 30), allow(), ends(blue, 7, 30), red.quiet, green.quiet],
    ),
    case(
        "packets of turns granted together begin together",
        [red >> TURN, red << granted(1), green >> TURN, green << granted(2), red >> packet(5, 1, 10), red.quiet],
        [green >> packet(6, 2, 20), red << pieces(5, "10"), green << pieces(6, "20"), together_were(requests=[2])],
        GATHER_NS=LONG,
    ),
    case(
        "a new request joins the others",
        [begins(red, 0, 1, 1), allow(1), red << pieces(0, " red"), begins(green, 0, 2, 2), allow()],
        [red << [*pieces(0, " red"), like(AnswerReply, text="1 red red")], ends(green, 0, 2)],
        [together_were(steps=[1, 2, 1])],
    ),
    case(
        "the longest wait comes first",
        [TWO_BEGIN, black >> TURN, black.quiet, blue >> TURN, blue.quiet, red >> Cancel(), black << granted(3)],
        [blue.quiet, allow(), ends(green, 0, 2), blue << granted(4)],
    ),
    case(
        "a client has at most one slot",
        [begins(red, 0, 1, 1), red >> TURN, red.quiet, green >> TURN, green << granted(2)],
        [allow(), ends(red, 0, 1), red << granted(3)],
    ),
    case(
        "a client that cancels frees only its slot and may ask again",
        [TWO_BEGIN, blue >> TURN, blue.quiet, red >> Cancel(), begins_in(blue, 0, 3, 3), allow()],
        [ends(green, 0, 2), ends(blue, 0, 3), red.quiet, begins(red, 1, 4, 4)],
    ),
    case(
        "a client that leaves frees only its slot",
        [TWO_BEGIN, blue >> TURN, blue.quiet, red >> Disconnect(), begins_in(blue, 0, 3, 3), allow()],
        [ends(green, 0, 2), ends(blue, 0, 3), red.quiet],
    ),
    case(
        "a lost client frees its slot",
        [TWO_BEGIN, blue >> TURN, red.vanishes, blue << granted(3), allow(), ends(green, 0, 2)],
        KEEP_ALIVE_NS=NS,
    ),
    case(
        "a client that waits and cancels gets no turn and stops no answer",
        [TWO_BEGIN, blue >> TURN, blue >> Cancel(), blue >> Connect(), blue << ServerHello, allow()],
        [ends(red, 0, 1), ends(green, 0, 2), blue.quiet],
    ),
    case(
        "a turn that expires frees its slot",
        [red >> TURN, red << granted(1), green >> TURN, green << granted(2), blue >> TURN, blue << granted(3)],
        [red >> packet(0, turn=1), red << expired(1)],
        TURN_LIMIT_NS=NS,
    ),
    case(
        "a failure is reported to its client only",
        [begins(red, 0, 1, 1), green.asks(0, 2, UNANSWERABLE)],
        [green << failed("ArithmeticError: the spoon is bent", "ArithmeticError"), allow(), ends(red, 0, 1)],
        [begins(red, 1, 3, 2), counted(slots=2, serving=1, totals={"answers": 1, "failed": 1})],
    ),
    case(
        "an answer that is lost on its way ends no connection",
        [begins(red, 0, 1, 1), green.asks(4, 2, LOST)],
        [green << RequestLost(answer=4, reason="the network failed"), begins(green, 5, 3, 2), allow()],
        [ends(red, 0, 1), ends(green, 5, 2)],
        shared=False,
    ),
    case(
        "a failure ends a server of one run",
        [red.asks(0, 1, UNANSWERABLE), red << ErrorReply],
        shared=False,
        failure="StageDied",
    ),
    case(
        "watches are evaluated beside answers",
        [begins(red, 0, 1, 1), green.asks(4, 2, 2, replace(CHECK, wants_answer=False))],
        [green << like(YesNoReply, answer=4, scores=(CheckScore(0.75, 0.5),)), green.asks(5, 3, 3, CHECK)],
        [green << [like(YesNoReply, answer=5), *pieces(5, "3")], allow(), ends(red, 0, 1), ends(green, 5, 3)],
        [counted(totals={"checks": 2})],
    ),
    case(
        "a glance leaves the turn while others are answered",
        [begins(red, 0, 1, 1), green >> TURN, green << granted(2), green >> glance(5, turn=2)],
        [green << like(GlanceReply, glance=5), green >> packet(3, 2, 2, Question("green")), green << pieces(3, "2")],
        [allow(), ends(red, 0, 1), ends(green, 3, 2)],
    ),
    case(
        "a packet that cannot be read frees the slot",
        [red >> TURN, red << granted(1), red >> (packet(0, 1)[0], packet(0, 1)[1][:1]), red << failed("announces")],
        *([begins(green, number, number + 2, number), allow(), ends(green, number, number)] for number in range(2)),
    ),
    case(
        "an endless answer is cut",
        [begins(red, 0, 1, 1), allow(1), red << [*pieces(0, " re"), like(AnswerReply, text="1 re")]],
        ANSWER_CHARS_MAX=4,
    ),
    case(
        "a server that drains ends all answers under way",
        [TWO_BEGIN, END, blue >> TURN, allow(), ends(red, 0, 1), ends(green, 0, 2), JOINED, blue.quiet],
    ),
    case(
        "a server that drains grants no free slot and admits no client",
        [begins(red, 5, 1, 10), END, green.awaits(KeepAlive(clients=2, slots=2, place=1, draining=True))],
        [green >> TURN, late >> Connect(), late >> Probe()],
        [late << KeepAlive(clients=2, slots=2, place=2, draining=True), green.quiet],
        [allow(), ends(red, 5, 10), JOINED, late.quiet],
    ),
    model=SlotAnswerModel,
    shared=True,
)
def test_slots(play: Callable[[Script], None], script: Script) -> None:
    play(script)
