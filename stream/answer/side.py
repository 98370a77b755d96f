"""Side questions of a run: each is put in force between two of the run's own answers, answered once, and replaced.

Pure logic; `stream/answer/scheduler.py` sets the queries and sends the packets.
"""

from __future__ import annotations

from collections import deque

from stream.control import SIDE_QUESTIONS_MAX, AskAside
from stream.events import Answer, AnswerDeltaEvent, Event, QueryChanged, SideAnswer, SideRefused, SideText

SIDE = "side"
"""Trigger of a side question's answer."""

CROWDED = f"as many side questions wait as may ({SIDE_QUESTIONS_MAX}); ask again in a moment"

LOST = "its answer was lost; ask again"

RUN_OVER = "the run has ended"


class SideQuestions:
    """Side questions of one run: those that wait, and the `current` one.

    `next_query` is the query to set, once; `expects` says whether a query that is now in force was set here. While
    `holds`, no answer of the run's own is asked for: the query in force is not its own, or about to be replaced.
    """

    def __init__(self) -> None:
        self._waiting: deque[AskAside] = deque()
        self._run_query: str | None = None
        self._run_query_before: str | None = None
        self._run_query_is_new = self._returning = False
        self._is_accepted = self._is_sent = False
        self._in_pieces = self._is_repeat = False
        self.current: AskAside | None = None

    @property
    def holds(self) -> bool:
        """True from the moment at which a side question's query is set until the run's own is in force again."""
        return self._run_query is not None

    @property
    def due(self) -> bool:
        """True if the current question is in force, and was not sent yet."""
        return self._is_accepted and not self._is_sent

    def add(self, question: AskAside) -> list[Event]:
        """Let a question wait; return its refusal if too many do."""
        if len(self._waiting) >= SIDE_QUESTIONS_MAX:
            return [SideRefused(question=question.number, error=CROWDED)]
        self._waiting.append(question)
        return []

    def next_query(self, run_query: str) -> str | None:
        """Return the query to set now: that of the next question or, after the last one, the run's own, which is
        `run_query` while none is stored; None to leave the query."""
        if self.current is not None:
            return None
        if self._waiting:
            self.current = self._waiting.popleft()
            self._returning = False
            if self._run_query is None:
                self._run_query = run_query
            return self.current.query
        if self._run_query is None or self._returning:
            return None
        self._returning = True
        return self._run_query

    def change_run_query(self, query: str) -> None:
        """Note the run's new query, which is set after the side questions; if it is refused then, the one before is."""
        if self._run_query_before is None:
            self._run_query_before = self._run_query
        self._run_query = query
        self._run_query_is_new = True
        self._returning = False

    def accept(self, query: str) -> bool:
        """Note the query that is in force; return whether the run's own answers are unaffected by it."""
        if self._run_query is None:
            return False
        if self.current is not None and query == self.current.query:
            self._is_accepted = True
            return True
        if query != self._run_query:
            return True
        new = self._run_query_is_new
        self._run_query_is_new = False
        self._run_query_before = None
        if self.current is None:
            self._run_query = None
            self._returning = False
        return not new

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
        if question is None and isinstance(event, QueryChanged) and event.error is not None:
            self._refuse_run_query(event.query)
            return None
        if question is None:
            run_query_is_new = self._run_query_is_new or self._run_query is None
            if isinstance(event, QueryChanged) and not run_query_is_new:
                return []
            return None
        if isinstance(event, QueryChanged) and event.query == question.query:
            if event.error is None:
                return []
            return self._end(SideRefused(question=question.number, error=event.error))
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
            SideRefused(question=question.number, error=RUN_OVER) for question in (*unsent_questions, *self._waiting)
        ]
        self._waiting.clear()
        if unsent_questions:
            self._end()
        return list(events)

    def _refuse_run_query(self, query: str) -> None:
        """Return to the run's query before this one, which was refused."""
        if query == self._run_query and self._run_query_before is not None:
            self._run_query = self._run_query_before
            self._run_query_before = None
            self._run_query_is_new = self._returning = False

    def _end(self, *events: Event) -> list[Event]:
        self.current = None
        self._is_accepted = False
        self._is_sent = False
        self._in_pieces = self._is_repeat = False
        return list(events)
