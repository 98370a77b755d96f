"""The answer that is awaited, at most one: its number, its packet, and what becomes of it when it is spoken or lost."""

from __future__ import annotations

import dataclasses

from arr_coc.types import NS_PER_S, Feedback, FramePacket, FrameStamp
from stream.clock import Clock
from stream.errors import TransportError
from stream.events import Answer, AnswerCancelled, AnswerText, Event, Looked, Shadow
from stream.limits import ANSWER_CHARS_MAX, PIECES_MAX
from stream.manners import Manners
from stream.messages import Answered, Text
from stream.messages import Looked as LookedMessage
from stream.packets import check_taught, feedback_of
from stream.question import Question
from stream.transport import Received


class Awaited:
    """What is asked, and what comes of it: events, feedback, and entries in the journal.

    `question` is the one that is open; `number` the next answer's. `given_up` counts answers that were lost with an
    answer stage, `cancelled` those that a cut made stale.
    """

    def __init__(self, manners: Manners, clock: Clock) -> None:
        self._manners = manners
        self._clock = clock
        self._feedback: Feedback | None = None
        self._fault: TransportError | None = None
        self.question: Question | None = None
        self.number = 0
        self.given_up = 0
        self.cancelled = 0
        self._cancelled_number: int | None = None

    def take_feedback(self) -> Feedback | None:
        """What the answers have taught since the last call; the newest one where there were several."""
        feedback, self._feedback = self._feedback, None
        return feedback

    def take_fault(self) -> TransportError | None:
        """Why what an answer taught could not be used, where that was so since the last call."""
        fault, self._fault = self._fault, None
        return fault

    def recall(self, stamp: FrameStamp) -> list[Event]:
        """The answer about this frame where the journal holds it, as events; nothing where it is to be asked for."""
        journal = self._manners.journal
        found = None if journal is None else journal.recall(self.number, stamp.frame_index)
        if found is None:
            return []
        self.number += 1
        if found.feedback is not None:
            self._feedback = dataclasses.replace(found.feedback, stamp=stamp)
        answer = found.answer
        return [AnswerText(answer=answer.answer, text=answer.text, pts_s=answer.pts_s), answer]

    def open(self, question: Question) -> None:
        """Awaits the answer to a question. The image of a whole frame may change once this has returned."""
        packet = question.packet
        if isinstance(packet, FramePacket) and not self._lay(packet):
            question.packet = dataclasses.replace(packet, image=packet.image.copy())
        self.question = question
        self.number += question.speak

    def give_up(self) -> None:
        """The open question is late by now, unless it is to be repeated."""
        if not self._manners.repeat and self.question is not None:
            self.given_up += self.question.checks is None
            self.question = None

    def cancel(self, new: FrameStamp, by: str) -> AnswerCancelled | None:
        """Drops the answer that is being spoken, because of a cut before the frame `new`; None where there is none.

        What the answer stage still says of it is ignored. A check of another answer, and a look, are no such answers.
        """
        question = self.question
        if question is None or not question.speak or question.checks is not None:
            return None
        self.question, self._cancelled_number = None, question.number
        self.cancelled += 1
        return question.cancelled(new, by)

    def text(self, message: Text, heard_ns: int) -> AnswerText | None:
        """A piece of the answer; None of one that only checks another, or was cancelled."""
        question = self._asked_for(message.answer)
        if question is None:
            return None
        question.pieces += 1
        if question.pieces > PIECES_MAX or len(question.spoken) + len(message.text) > ANSWER_CHARS_MAX:
            raise TransportError(f"an answer has more than {PIECES_MAX} pieces or {ANSWER_CHARS_MAX} characters")
        if question.checks is not None:
            return None
        question.spoken += message.text
        question.first_text_ns = question.first_text_ns or heard_ns
        return AnswerText(answer=message.answer, text=message.text, pts_s=question.stamp.media_ns / NS_PER_S)

    def looked(self, message: LookedMessage, received: Received, heard_ns: int) -> Looked | None:
        """One look, told once: a question that is repeated is looked at again."""
        question = self._asked_for(message.answer)
        if question is None:
            return None
        if self._manners.until is None:
            raise TransportError("the answer stage looked for something, and nothing was to be looked for")
        feedback = self._taught(question, message, received)
        known, question.looked = question.looked, True
        self._feedback = feedback or self._feedback
        if not question.speak:
            self.question = None
        return None if known else question.look(message, self._manners.until, heard_ns)

    def answered(self, message: Answered, received: Received, heard_ns: int) -> Answer | Shadow | None:
        """The whole answer. Where it is to be checked, the next question is open then: about the same frame, whole."""
        question = self._asked_for(message.answer)
        if question is None:
            return None
        feedback = self._taught(question, message, received)
        self.question = None
        if question.checks is not None:
            return question.checked(message)
        answer = question.answered(message, heard_ns)
        self._feedback = feedback or self._feedback
        if question.shadow is not None:
            self._lay(question.shadow)
            self.question = Question(
                answer.answer, question.shadow, answer.trigger, self._clock.now_ns(), checks=answer
            )
        if self._manners.journal is not None:
            self._manners.journal.keep(answer, feedback)
        return answer

    def _taught(self, question: Question, message: Answered | LookedMessage, received: Received) -> Feedback | None:
        """What an answer teaches; nothing where that is none, which makes the answer no worse."""
        try:
            feedback = feedback_of(message, received.parts)
            check_taught(feedback, question.stamp, question.packet.grid)
        except TransportError as error:
            self._fault = error
            return None
        return feedback

    def _lay(self, packet: FramePacket) -> bool:
        """Lays the image of a whole frame into the snapshot, where there is one."""
        if self._manners.snapshot is not None:
            self._manners.snapshot.write(packet.image)
        return self._manners.snapshot is not None

    def is_open(self, number: int) -> bool:
        """Whether the answer of this number is awaited."""
        return self.question is not None and self.question.number == number

    def _asked_for(self, number: int) -> Question | None:
        """The open question of this number; None where its answer was cancelled. Raises TransportError otherwise."""
        if self.question is not None and self.question.number == number:
            return self.question
        if number == self._cancelled_number:
            return None
        raise TransportError(f"the answer stage speaks of answer {number}, which was not asked for")
