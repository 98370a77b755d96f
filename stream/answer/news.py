"""News: an answer that only says the last one again is reported as unchanged."""

from __future__ import annotations

import dataclasses

from msgspec import structs

from arr_coc.answer_schema import AnswerSchema
from arr_coc.types import FrameStamp, PreviousAnswer, Question
from stream.answer.filters import AnswerFilter, FinishedAnswer, RecalledAnswer
from stream.answer.structured import model_text
from stream.events import Answer, AnswerUnchanged


class NewsFilter(AnswerFilter):
    """The last answer of a run, in its epoch, which is repeated from the probability `same_above` on.

    `schema`: schema of the answers, which the model is shown as it wrote them.
    """

    def __init__(self, same_above: float, schema: AnswerSchema | None = None) -> None:
        self._same_above = same_above
        self._schema = schema
        self._last: Answer | None = None

    def begin_shot(self) -> None:
        """Forget the last answer."""
        self._last = None

    def before_ask(self, question: Question, stamp: FrameStamp, *, aside: bool) -> Question:
        """Return the question with the last answer to it, which may be repeated."""
        if aside or not question.wants_answer or self._last is None or self._last.query != question.text:
            return question
        previous = PreviousAnswer(model_text(self._last, self._schema), self._same_above)
        return dataclasses.replace(question, previous=previous)

    def holds_back(self, question: Question, text: str) -> bool:
        """Return True while an answer may repeat the previous one."""
        return question.previous is not None and question.previous.text.startswith(text)

    def on_answer(self, answer: FinishedAnswer) -> None:
        """Report an answer as unchanged if its text is exactly that of the previous one; note any other."""
        event = answer.event
        previous = answer.question.previous
        if not isinstance(event, Answer):
            return
        last = self._last
        if previous is None or last is None or model_text(event, self._schema) != previous.text:
            self._last = event
            return
        answer.event = AnswerUnchanged(**structs.asdict(event), since_s=last.pts_s, probability=answer.reply.same)

    def on_recall(self, recalled: RecalledAnswer, stamp: FrameStamp) -> None:
        """Note an answer of an earlier run."""
        if isinstance(recalled.event, Answer):
            self._last = recalled.event
