"""Side questions of a run: each is embedded, and answered once between two of the run's own answers."""

from __future__ import annotations

from collections import deque

from stream.answer.embeddings import EmbeddedQuestion, QuestionKey, RefusedQuestion
from stream.answer.questions import Asker, RunQuestions
from stream.control import SIDE_QUESTIONS_MAX, AskAside, Command
from stream.events import Answer, AnswerCancelled, AnswerDeltaEvent, Event, SideAnswer, SideRefused, SideText

CROWDED = f"as many side questions wait as may ({SIDE_QUESTIONS_MAX}); ask again in a moment"

LOST = "its answer was lost; ask again"

NO_SIDE_QUESTIONS = "this run keeps its answers to be continued, and takes no side questions; leave --resume out"

RUN_OVER = "the run has ended"


class SideQuestions(Asker):
    """Side questions of one run: those that wait, and the present one."""

    def __init__(self, questions: RunQuestions) -> None:
        super().__init__(questions)
        self.waiting: deque[AskAside] = deque()
        self._number = 0
        self._in_pieces = self._is_repeat = False

    def follow(self, command: Command) -> None:
        if not isinstance(command, AskAside):
            return
        if self.questions.finishing:
            self._refuse(command.number, RUN_OVER)
        elif self.questions.is_fixed:
            self._refuse(command.number, NO_SIDE_QUESTIONS)
        elif len(self.waiting) >= SIDE_QUESTIONS_MAX:
            self._refuse(command.number, CROWDED)
        else:
            self.waiting.append(command)

    def begin(self, *, has_frame: bool) -> None:
        if not has_frame or not self.waiting or self.questions.asking is not None:
            return
        command = self.waiting.popleft()
        self._number = command.number
        self._in_pieces = self._is_repeat = False
        self.question = command.query
        self.questions.asking = self
        self.questions.embed(QuestionKey(command.query))

    def take(self, outcome: EmbeddedQuestion | RefusedQuestion) -> None:
        if self.questions.asking is not self or self.is_sent or outcome.key != QuestionKey(self.question):
            return
        if isinstance(outcome, EmbeddedQuestion):
            self.questions.allocate_for(self.question)
        else:
            self._end(outcome.error)

    def on_event(self, event: Event) -> None:
        """Emit a piece of the answer, or the whole. If pieces of a stale one were emitted, the next one comes whole."""
        if isinstance(event, AnswerCancelled):
            self.is_sent = False
            self._is_repeat = self._in_pieces
        elif isinstance(event, AnswerDeltaEvent):
            self._in_pieces = True
            if not self._is_repeat:
                self.questions.emit(SideText(question=self._number, text=event.text))
        elif isinstance(event, Answer):
            self._end()
            self.questions.emit(
                SideAnswer(
                    question=self._number,
                    query=event.query,
                    text=event.text,
                    frame_index=event.frame_index,
                    start_s=event.start_s,
                    end_s=event.end_s,
                    frames=event.frames,
                    tokens_used=event.tokens_used,
                    tokens_total=event.tokens_total,
                    text_tokens=event.text_tokens,
                    prefilled_tokens=event.prefilled_tokens,
                )
            )

    def on_lost(self) -> None:
        self._end(LOST)

    def finish(self) -> None:
        """Refuse the questions that were not sent."""
        if self.questions.asking is self and not self.is_sent:
            self._end(RUN_OVER)
        for command in self.waiting:
            self._refuse(command.number, RUN_OVER)
        self.waiting.clear()

    def _end(self, error: str | None = None) -> None:
        """End the present question, with the reason if it gets no answer."""
        self.questions.asking = None
        self.is_sent = False
        if error is not None:
            self._refuse(self._number, error)

    def _refuse(self, number: int, error: str) -> None:
        self.questions.emit(SideRefused(question=number, error=error))
