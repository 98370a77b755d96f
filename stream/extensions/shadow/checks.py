"""Shadow checks: the frame of an answer is answered again with all of its tokens, to compare."""

from __future__ import annotations

import dataclasses
from typing import Self

from arr_coc.answer_schema import AnswerSchema
from arr_coc.types import FrameStamp
from stream.answer.agreement import text_agreement
from stream.answer.filters import AnswerFilter, FinishedAnswer, RecalledAnswer
from stream.config import Config
from stream.events import Answer, Event, ShadowCheck
from stream.extensions.shadow.section import ShadowSection
from stream.protocol.messages import AnswerReply


class ShadowChecks(AnswerFilter):
    """Checks of one in `options.every` answers of a run, whose answers have this schema."""

    def __init__(self, options: ShadowSection, schema: AnswerSchema | None = None) -> None:
        self._options = options
        self._schema = schema
        self._answers = 0
        self._is_due = False
        self._text = ""

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """Return the checks of a run, None without any."""
        options = ShadowSection.of(config)
        return None if options.every is None else cls(options, config.answer.schema_of_answers)

    def wants_full_frame(self) -> bool:
        """Return True if the next answer is to be checked."""
        self._answers += 1
        self._is_due = self._answers % (self._options.every or 1) == 0
        return self._is_due

    def on_recall(self, recalled: RecalledAnswer, stamp: FrameStamp) -> None:
        """Count an answer of an earlier run."""
        self._answers += 1

    def on_answer(self, answer: FinishedAnswer) -> None:
        """Ask the question again about the whole frame."""
        if not isinstance(answer.event, Answer) or not self._is_due:
            return
        self._text = answer.event.text  # filters behind this one may change it
        compared = self._text if self._options.compare == "meaning" else None
        answer.ask(dataclasses.replace(answer.question, checks=(), previous=None, compared=compared), self)

    def on_follow_up(self, answer: FinishedAnswer, reply: AnswerReply) -> list[Event]:
        """Return the comparison with the answer of all tokens; none if that does not fit the schema."""
        event = answer.event
        full_text = reply.text
        if self._schema is not None:
            try:
                full_text = self._schema.readable(self._schema.fields_of(reply.text))
            except ValueError:
                return []
        agreement = text_agreement(self._text, full_text)
        likeness = agreement.words if reply.same is None else reply.same
        return [
            ShadowCheck(
                answer=event.answer,
                frame_index=event.frame_index,
                pts_s=event.pts_s,
                query=event.query,
                text=self._text,
                full_text=full_text,
                same=agreement.same,
                words=agreement.words,
                tokens_used=event.tokens_used,
                tokens_full=reply.work.tokens_used,
                differs=likeness < self._options.agree,
                meaning=reply.same,
            )
        ]
