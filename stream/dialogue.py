"""The allocate stage's side of the conversation with the answer stage: packets go out, text and feedback come in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from arr_coc import errors as arr_coc_errors
from arr_coc.types import NS_PER_S, Feedback, FramePacket, FrameStamp, QueryEmbedding, TokenPacket
from stream import errors as stream_errors
from stream.clock import Clock
from stream.errors import StageDied, TransportError
from stream.events import ANSWERS_LOST, Answer, AnswerText, Asked, Event, Looked, Notice, Shadow
from stream.journal import Journal
from stream.messages import (
    Alive,
    Answered,
    Ask,
    Asking,
    Cancel,
    Failed,
    Hello,
    Join,
    Lapsed,
    Leave,
    Text,
    Turn,
    Want,
)
from stream.messages import Looked as LookedMessage
from stream.packets import embedding_of, feedback_of, frame_message, token_message
from stream.patience import Patience
from stream.question import Question
from stream.snapshot import SnapshotWriter
from stream.stages.base import USER_ERRORS
from stream.transport import Link, Received

FAILURES_MAX = 5
"""Answers that may fail one after the other before the conversation is given up."""


@dataclass(frozen=True, slots=True)
class Manners:
    """What is sent, and how the conversation goes on when the answer stage is lost.

    `encode` is what the packets are for. `rejoin`: a new answer stage is looked for, else the run ends. `repeat`: it is
    asked again what the lost one was asked, else that answer is given up, as it would be late. `supervised`: somebody
    else notices its death. `snapshot`: where whole frames are laid, shared with it; `journal`: the answers of a run
    that this one continues. `until` is a standing question, to be looked at with every packet.
    """

    encode: str = "sparse"
    until: str | None = None
    rejoin: bool = False
    repeat: bool = False
    supervised: bool = True
    snapshot: SnapshotWriter | None = None
    journal: Journal | None = None


class Dialogue:
    """What has been asked, what has been heard, and whether it is this process's turn.

    `connect` makes the link, again after a loss. `hear` yields the events that waiting messages make, and keeps what
    its reader takes: `hello`, `take_embedding`, `take_feedback`. `given_up` counts answers that were lost with an
    answer stage.
    """

    def __init__(self, connect: Callable[[], Link], clock: Clock, query: str, manners: Manners) -> None:
        self._connect = connect
        self._clock = clock
        self._query = query
        self._next_query: str | None = None
        self._manners = manners
        self._asked = 0
        self._failures = 0
        self._question: Question | None = None
        self._recalled: list[Event] = []
        self._news: list[Event] = []
        self._without_answers = False
        self._feedback: Feedback | None = None
        self._embedding: QueryEmbedding | None = None
        self._heard_ns = 0
        self.given_up = 0
        self._begin()

    def _begin(self) -> None:
        self.link = self._connect()
        self.hello: Hello | None = None
        self._joined = False
        self._ready = False
        self._wanting = False
        self._turn: int | None = None
        self._patience = Patience(self._clock)

    @property
    def ready(self) -> bool:
        """The answer stage has its model and knows the question."""
        return self._ready

    @property
    def wants_packet(self) -> bool:
        """It is this process's turn."""
        return self._turn is not None and self._question is None

    @property
    def busy(self) -> bool:
        """An answer is awaited."""
        return self._question is not None or bool(self._recalled)

    @property
    def silence_s(self) -> float:
        """How long nothing has been heard while a turn or an answer is awaited; 0 where none is."""
        return self._patience.silence_s

    def want(self) -> None:
        """Asks for a turn, once; as soon as the answer stage is ready."""
        if self._ready and not self._wanting and self._turn is None:
            self._wanting = self.link.offer(Want())

    def recall(self, stamp: FrameStamp) -> bool:
        """Whether the journal holds the answer about this frame; if so, it comes with the next `hear`."""
        journal = self._manners.journal
        found = None if journal is None else journal.recall(self._asked, stamp.frame_index)
        if found is None:
            return False
        self._asked += 1
        if found.feedback is not None:
            self._feedback = dataclasses.replace(found.feedback, stamp=stamp)
        self._recalled = [
            AnswerText(answer=found.answer.answer, text=found.answer.text, pts_s=found.answer.pts_s),
            found.answer,
        ]
        return True

    def ask(
        self,
        packet: TokenPacket | FramePacket,
        trigger: str,
        *,
        speak: bool = True,
        look_trigger: str = "",
        shadow: FramePacket | None = None,
    ) -> None:
        """Sends a packet for the turn that was granted. A FramePacket's image may change once this has returned.

        Without `speak` only the standing question is looked at. `shadow`: the same frame whole, with an image of its
        own, which is asked about in a turn of its own after the answer, to compare.
        """
        if isinstance(packet, FramePacket):
            if self._manners.snapshot is not None:
                self._manners.snapshot.write(packet.image)
            else:
                packet = dataclasses.replace(packet, image=packet.image.copy())
        self._question = Question(
            self._asked, packet, trigger, self._clock.now_ns(), speak=speak, look_trigger=look_trigger, shadow=shadow
        )
        self._asked += speak
        self._send_question(self._question)

    def put_question(self, query: str) -> None:
        """The question from the next packet on; an `Asked` event tells whether it was taken."""
        self._next_query = query
        if self._ready:
            self.link.send(Ask(query=query))

    def take_embedding(self) -> QueryEmbedding | None:
        """The embedding of a question that has come to hold since the last call."""
        embedding, self._embedding = self._embedding, None
        return embedding

    def take_feedback(self) -> Feedback | None:
        """What the answers have taught since the last call; the newest one where there were several."""
        feedback, self._feedback = self._feedback, None
        return feedback

    def leave(self) -> None:
        """Nothing more will be asked. A peer that is gone need not be told."""
        self.link.offer(Leave())

    def cancel(self) -> None:
        """What was asked is not wanted any more. A peer that is gone need not be told."""
        self.link.offer(Cancel())
        self.link.offer(Leave())

    def close(self) -> None:
        self.link.close()

    def hear(self, timeout_ms: int) -> Iterator[Event]:
        """The events of every message that is there; waits at most `timeout_ms` for the first one.

        Raises StageDied, or the error that the user can put right, where the answer stage says that it failed or is
        gone for good; ConnectionRefused where it does not accept this end's key.
        """
        recalled, self._recalled = self._recalled, []
        yield from recalled
        yield from self._take_news()
        if not self._joined:
            self._joined = self.link.offer(
                Join(query=self._query, encode=self._manners.encode, until=self._manners.until)
            )
        received = self.link.receive(0 if recalled else timeout_ms)
        awaited = self._ready and (self._question is not None or self._wanting)
        self._patience.look(waiting=awaited, heard=received is not None)
        while received is not None:
            self._heard_ns = self._clock.now_ns()
            event = self._event(received)
            if event is not None:
                yield event
            received = self.link.receive()
        if self.link.lost:
            if self._manners.rejoin:
                self.lose("the connection was lost")
            elif not self._manners.supervised:
                raise StageDied("answer", "the connection to it was lost; is `serve-answers` still running there?")
        yield from self._take_news()

    def lose(self, reason: str) -> None:
        """Gives up this answer stage, and looks for its successor.

        `reason` is told by `hear` where nobody else tells of a death, once until there is an answer again.
        """
        self.link.close()
        self._give_up()
        if not self._manners.supervised and not self._without_answers:
            self._without_answers = True
            self._news.append(Notice(code=ANSWERS_LOST, message=f"no answers: {reason}; trying the answer stage again"))
        self._begin()

    def _take_news(self) -> list[Event]:
        news, self._news = self._news, []
        return news

    def _give_up(self) -> None:
        """The open question is late by now, unless it is to be repeated."""
        if not self._manners.repeat and self._question is not None:
            self.given_up += self._question.checks is None
            self._question = None

    def _send_question(self, question: Question) -> None:
        assert self._turn is not None
        number, turn, packet = question.number, self._turn, question.packet
        self._turn = None
        question.asked_ns, question.first_text_ns = self._clock.now_ns(), None
        if isinstance(packet, TokenPacket):
            message, arrays = token_message(number, turn, packet, speak=question.speak)
            self.link.send(message, arrays)
        else:
            in_snapshot = self._manners.snapshot is not None
            whole, arrays = frame_message(number, turn, packet, in_snapshot=in_snapshot, speak=question.speak)
            self.link.send(whole, arrays)

    def _event(self, received: Received) -> Event | None:
        message = received.message
        if isinstance(message, Turn):
            self._take_turn(message.turn)
        elif isinstance(message, Text):
            return self._text(message)
        elif isinstance(message, Answered):
            return self._answered(message, received)
        elif isinstance(message, LookedMessage):
            return self._looked(message, received)
        elif isinstance(message, Asking):
            return self._asking(message, received)
        elif isinstance(message, Hello):
            self.hello = message
        elif isinstance(message, Lapsed):
            self._wanting = False
            self._lapsed()
        elif isinstance(message, Failed):
            self._failed(message)
        elif not isinstance(message, Alive):
            raise TransportError(f"the answer stage sent a message of the wrong kind, {type(message).__name__}")
        return None

    def _take_turn(self, turn: int) -> None:
        self._turn, self._wanting = turn, False
        if self._question is not None:
            self._send_question(self._question)

    def _lapsed(self) -> None:
        self._give_up()
        self._again()

    def _again(self) -> None:
        """Asks for a turn for the question that is still open."""
        if self._question is not None:
            self.want()

    def _asking(self, message: Asking, received: Received) -> Event | None:
        """The question that holds now: the first one, or one that was put meanwhile."""
        changed = self._next_query is not None and message.query == self._next_query
        if changed:
            self._next_query = None
        if message.error is not None:
            return Asked(query=message.query, error=message.error)
        if self.hello is None:
            raise TransportError("the answer stage speaks of a question and has not said which model it has")
        self._embedding = embedding_of(message, received.parts)
        self._query = message.query
        if not self._ready:
            self._ready = True
            self._again()
            if self._next_query is not None:
                self.put_question(self._next_query)
        return Asked(query=message.query) if changed else None

    def _asked_for(self, number: int) -> Question:
        if self._question is None or self._question.number != number:
            raise TransportError(f"the answer stage speaks of answer {number}, which was not asked for")
        return self._question

    def _text(self, message: Text) -> AnswerText | None:
        question = self._asked_for(message.answer)
        if question.checks is not None:
            return None
        question.first_text_ns = question.first_text_ns or self._heard_ns
        return AnswerText(answer=message.answer, text=message.text, pts_s=question.stamp.media_ns / NS_PER_S)

    def _looked(self, message: LookedMessage, received: Received) -> Looked | None:
        """One look, told once: a question that is repeated is looked at again."""
        question, feedback = self._asked_for(message.answer), feedback_of(message, received.parts)
        if self._manners.until is None:
            raise TransportError("the answer stage looked for something, and nothing was to be looked for")
        known, question.looked = question.looked, True
        self._failures = 0
        self._without_answers = False
        self._feedback = feedback or self._feedback
        if not question.speak:
            self._question = None
        return None if known else question.look(message, self._manners.until, self._heard_ns)

    def _answered(self, message: Answered, received: Received) -> Answer | Shadow | None:
        question = self._asked_for(message.answer)
        feedback = feedback_of(message, received.parts)
        self._question = None
        self._failures = 0
        self._without_answers = False
        if question.checks is not None:
            return question.checked(message)
        answer = question.answered(message, self._heard_ns)
        self._feedback = feedback or self._feedback
        if question.shadow is not None:
            self._check(answer, question.shadow)
        if self._manners.journal is not None:
            self._manners.journal.keep(answer, feedback)
        return answer

    def _check(self, answer: Answer, frame: FramePacket) -> None:
        """Wants a turn for the same frame, whole."""
        if self._manners.snapshot is not None:
            self._manners.snapshot.write(frame.image)
        self._question = Question(answer.answer, frame, answer.trigger, self._clock.now_ns(), checks=answer)
        self.want()

    def _failed(self, message: Failed) -> None:
        """Raises what the answer stage met, unless another one may do better."""
        kind = getattr(arr_coc_errors, message.error, None) or getattr(stream_errors, message.error, None)
        if isinstance(kind, type) and issubclass(kind, USER_ERRORS):
            raise kind(message.message)
        self._failures += 1
        if not self._manners.rejoin or self._failures > FAILURES_MAX:
            raise StageDied("answer", message.message)
        self.lose(message.message)
