"""Answers with a schema: each has its fields, or is reported as invalid."""

from __future__ import annotations

import dataclasses

from msgspec import structs

from arr_coc.answer_schema import AnswerSchema
from arr_coc.types import FrameStamp, Question
from stream.answer.filters import AnswerFilter, FinishedAnswer
from stream.events import AnswerInvalid, AnswerPoint
from stream.untrusted import REASON_CHARS_MAX, cut_to, printable


def model_text(answer: AnswerPoint, schema: AnswerSchema | None) -> str:
    """Return the text of an answer as the model wrote it."""
    if schema is None or answer.fields is None:
        return answer.text
    return schema.text_of(answer.fields)


class StructuredAnswers(AnswerFilter):
    """Schema of a run's answers; those to side questions have none."""

    shows_whole = True  # a part of an answer is no JSON, and the whole of it may not fit

    def __init__(self, schema: AnswerSchema) -> None:
        self._schema = schema

    def before_ask(self, question: Question, stamp: FrameStamp, *, aside: bool) -> Question:
        """Return the question with the schema of its answer."""
        if aside or not question.wants_answer:
            return question
        return dataclasses.replace(question, schema=self._schema.text)

    def on_answer(self, answer: FinishedAnswer) -> None:
        """Give an answer its fields, and its text for people; report it as invalid if it does not fit the schema."""
        event = answer.event
        try:
            fields = self._schema.fields_of(event.text)
        except ValueError as error:
            reason = cut_to(printable(str(error)), REASON_CHARS_MAX)
            answer.event = AnswerInvalid(**structs.asdict(structs.replace(event, text="")), reason=reason)
        else:
            answer.event = structs.replace(event, text=self._schema.readable(fields), fields=fields)
