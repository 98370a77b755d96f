"""Answer filters: what the features of a run add to each question, and make of each answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from arr_coc.types import Feedback, FramePacket, FrameStamp, Question, TokenPacket
from stream.events import AnswerPoint, Event, Glance
from stream.protocol.messages import AnswerReply


@dataclass(frozen=True, slots=True)
class PriorGlance:
    """Glance before an answer."""

    event: Glance
    feedback: Feedback | None
    """None if it was unusable."""


@dataclass(slots=True)
class FollowUp:
    """Question that is asked after an answer, about the same frame; its answer is not shown."""

    packet: FramePacket
    question: Question
    asker: AnswerFilter


@dataclass(slots=True)
class FinishedAnswer:
    """Answer of a run that has arrived whole, as its filters change it one after another."""

    question: Question
    """The question as it was asked."""
    packet: TokenPacket | FramePacket
    reply: AnswerReply
    event: AnswerPoint
    """Event of the answer; a filter may put another one in its place."""
    feedback: Feedback | None = None
    """None if it has none, or none that can be used."""
    glance: PriorGlance | None = None
    full_frame: FramePacket | None = None
    """The frame with all of its tokens, if a filter wanted it."""
    events: list[Event] = field(default_factory=list)
    """Events after that of the answer."""
    follow_up: FollowUp | None = None

    @property
    def stamp(self) -> FrameStamp:
        """Stamp of the frame."""
        return self.packet.stamp

    def ask(self, question: Question, asker: AnswerFilter) -> None:
        """Ask a question about the whole frame after the answer, unless a filter before has asked one."""
        if self.full_frame is not None and self.follow_up is None:
            self.follow_up = FollowUp(self.full_frame, question, asker)


@dataclass(frozen=True, slots=True)
class RecalledAnswer:
    """Answer that an earlier run was given.

    The stamps of feedback are those of the earlier run: their epochs have no meaning in this one.
    """

    event: AnswerPoint
    feedback: Feedback | None
    glance: PriorGlance | None = None
    events: tuple[Event, ...] = ()
    """Events after that of the answer."""


class AnswerFilter:
    """A feature's part in the answers of one run. Each method does nothing until a feature has its own.

    A run calls its filters in one order, from the thread that allocates. They see the run's own answers, not those to
    side questions, except for `before_ask`.
    """

    shows_whole = False
    """No piece of an answer is shown before the whole of it."""
    fixes_questions = False
    """The questions of the run stay as they are: no side questions, and no changes of watches."""

    def begin_shot(self) -> None:
        """Forget what is of the shot before: what follows is about frames of another epoch."""

    def before_ask(self, question: Question, stamp: FrameStamp, *, aside: bool) -> Question:
        """Return the question about the frame of this stamp, with what this filter adds to it.

        `aside`: it is a side question. A question may be of checks alone.
        """
        return question

    def wants_full_frame(self) -> bool:
        """Return True if the next answer is to come with the whole frame beside its packet. Called once an answer."""
        return False

    def holds_back(self, question: Question, text: str) -> bool:
        """Return True if this beginning of an answer is not to be shown yet."""
        return False

    def on_answer(self, answer: FinishedAnswer) -> None:
        """Change an answer, add events to it, or ask a question after it."""

    def on_follow_up(self, answer: FinishedAnswer, reply: AnswerReply) -> list[Event]:
        """Return the events of the reply to the question that this filter asked after an answer."""
        return []

    def on_end(self, answer: FinishedAnswer) -> None:
        """Note an answer of which nothing follows: it was changed by all filters, and its follow-up has ended."""

    def recalls(self, number: int) -> bool:
        """Return True if an earlier run was given the answer of that number."""
        return False

    def recall(self, number: int, stamp: FrameStamp) -> RecalledAnswer | None:
        """Return the answer of that number about the frame of this stamp, if an earlier run was given it.

        Raises ResumeError if that was about another frame.
        """
        return None

    def on_recall(self, recalled: RecalledAnswer, stamp: FrameStamp) -> None:
        """Note an answer of an earlier run about the frame of this stamp, which takes the place of a new one."""


class Continuation(AnswerFilter):
    """Answers of an earlier run, which a run continues and adds to.

    `notes`: lines for the user, before the run begins.
    """

    notes: tuple[str, ...] = ()

    def open(self) -> None:
        """Begin to add answers: the run is certain to start. Raises ResumeError."""

    def close(self, *, is_finished: bool) -> str | None:
        """End with the run, which has finished or can be continued; return a line for the user, if there is one."""
        return None
