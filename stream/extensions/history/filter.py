"""Earlier answers of a run, as the model is shown them."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Self

from arr_coc.answer_schema import AnswerSchema
from arr_coc.types import NS_PER_S, FrameStamp, PastAnswer, Question
from stream.answer.filters import AnswerFilter, FinishedAnswer, RecalledAnswer
from stream.answer.structured import model_text
from stream.config import Config
from stream.events import Answer, AnswerPoint
from stream.extensions.history.section import HistorySection
from stream.untrusted import HISTORY_CHARS_MAX, cut_to, printable


class AnswerHistory(AnswerFilter):
    """The newest answers of a run, to any question, in the epoch of the newest or, with `spans_cuts`, in all.

    `schema`: schema of the answers, which the model is shown as it wrote them.
    """

    def __init__(self, options: HistorySection, schema: AnswerSchema | None = None) -> None:
        self._spans_cuts = options.spans_cuts
        self._schema = schema
        self._newest: deque[PastAnswer] = deque(maxlen=options.answers)

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """Return the history of a run, None without one."""
        options = HistorySection.of(config)
        return cls(options, config.answer.schema_of_answers) if options.answers else None

    def begin_shot(self) -> None:
        """Forget the answers, unless they are to span cuts."""
        if not self._spans_cuts:
            self._newest.clear()

    def before_ask(self, question: Question, stamp: FrameStamp, *, aside: bool) -> Question:
        """Return the question after the newest answers, oldest first."""
        if question.wants_answer:
            return dataclasses.replace(question, history=tuple(self._newest))
        return question

    def on_answer(self, answer: FinishedAnswer) -> None:
        """Add an answer."""
        self._add(answer.event)

    def on_recall(self, recalled: RecalledAnswer, stamp: FrameStamp) -> None:
        """Add an answer of an earlier run."""
        self._add(recalled.event)

    def _add(self, event: AnswerPoint) -> None:
        """Add an answer; one that is unchanged or invalid is ignored."""
        if isinstance(event, Answer):
            text = cut_to(printable(model_text(event, self._schema)), HISTORY_CHARS_MAX)
            self._newest.append(PastAnswer(round(event.pts_s * NS_PER_S), text))
