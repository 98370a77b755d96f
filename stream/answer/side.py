"""Side questions of a run: each is embedded, and answered once between two of the run's own answers.

Pure logic; `stream/answer/scheduler.py` sends the packets.
"""

from __future__ import annotations

from collections import deque

from stream.answer.triggers import SIDE
from stream.control import SIDE_QUESTIONS_MAX, AskAside
from stream.events import Answer, AnswerDeltaEvent, Event, SideAnswer, SideRefused, SideText

CROWDED = f"as many side questions wait as may ({SIDE_QUESTIONS_MAX}); ask again in a moment"

LOST = "its answer was lost; ask again"

RUN_OVER = "the run has ended"


class SideQuestions:
    """Side questions of one run: those that wait, and the `current` one, meanwhile no answer of the run's own is asked
    for. `due`: the current one is embedded, and was not sent yet."""

    def __init__(self) -> None:
        self.waiting: deque[AskAside] = deque()
        self._is_embedded = self._is_sent = False
        self._in_pieces = self._is_repeat = False
        self.current: AskAside | None = None

    @property
    def due(self) -> bool:
        """True if the current question can be asked, and was not sent yet."""
        return self._is_embedded and not self._is_sent

    def add(self, question: AskAside) -> list[Event]:
        """Let a question wait; return its refusal if too many do."""
        if len(self.waiting) >= SIDE_QUESTIONS_MAX:
            return [SideRefused(question=question.number, error=CROWDED)]
        self.waiting.append(question)
        return []

    def begin(self) -> str | None:
        """Begin with the next question; return its text, None if there is none or one is open."""
        if self.current is not None or not self.waiting:
            return None
        self.current = self.waiting.popleft()
        return self.current.query

    def accept(self, text: str) -> bool:
        """Note that a question is embedded; return whether it is the current one."""
        if self.current is None or self._is_sent or text != self.current.query:
            return False
        self._is_embedded = True
        return True

    def refuse(self, text: str, error: str) -> list[Event]:
        """Note that the server cannot be asked a question; return the refusal if it is the current one."""
        if self.current is None or text != self.current.query:
            return []
        return self._end(SideRefused(question=self.current.number, error=error))

    def send(self) -> None:
        """Note that the current question was sent."""
        self._is_sent = True

    def send_again(self) -> None:
        """Note that the answer is to be asked for again: a cut has made it stale. If pieces of it were passed on, the
        next one comes whole."""
        self._is_sent = False
        self._is_repeat = self._in_pieces

    def events_of(self, event: Event) -> list[Event] | None:
        """Return the events in place of one about the current question; None if it is about something else."""
        question = self.current
        if question is None:
            return None
        if isinstance(event, AnswerDeltaEvent) and self._is_sent:
            self._in_pieces = True
            if self._is_repeat:
                return []
            return [SideText(question=question.number, text=event.text)]
        if isinstance(event, Answer) and event.trigger == SIDE:
            return self._end(
                SideAnswer(
                    question=question.number,
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
        return None

    def lose(self) -> list[Event]:
        """End the current question if it was sent: its answer was lost."""
        if self.current and self._is_sent:
            return self._end(SideRefused(question=self.current.number, error=LOST))
        return []

    def finish(self) -> list[Event]:
        """Refuse the questions that were not sent: the run ends."""
        if self.current is not None and not self._is_sent:
            unsent_questions = [self.current]
        else:
            unsent_questions = []
        events = [
            SideRefused(question=question.number, error=RUN_OVER) for question in (*unsent_questions, *self.waiting)
        ]
        self.waiting.clear()
        if unsent_questions:
            self._end()
        return list(events)

    def _end(self, *events: Event) -> list[Event]:
        self.current = None
        self._is_embedded = False
        self._is_sent = False
        self._in_pieces = self._is_repeat = False
        return list(events)
