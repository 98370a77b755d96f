"""Earlier answers of a run: before the next question, and as the answer that is not repeated."""

from __future__ import annotations

import dataclasses
from collections import deque

from msgspec import structs

from arr_coc.answer_schema import AnswerSchema
from arr_coc.types import NS_PER_S, FrameStamp, PastAnswer, PreviousAnswer, Question
from stream.answer.filters import AnswerFilter, FinishedAnswer, RecalledAnswer
from stream.events import Answer, AnswerPoint, AnswerUnchanged
from stream.untrusted import HISTORY_CHARS_MAX, cut_to, printable


class AnswerHistory(AnswerFilter):
    """Answers of one run in the epoch of the newest: the `length` newest, to any question, and the last one.

    `same_above`: smallest probability at which the last answer to the same question is repeated; None to answer each
    question. `schema`: schema of the answers, which the model is shown as it wrote them. `spans_cuts`: the newest ones
    stay in another epoch.
    """

    def __init__(
        self,
        length: int = 0,
        same_above: float | None = None,
        schema: AnswerSchema | None = None,
        *,
        spans_cuts: bool = False,
    ) -> None:
        self._same_above = same_above
        self._schema = schema
        self._spans_cuts = spans_cuts
        self._newest: deque[PastAnswer] = deque(maxlen=length)
        self._last: Answer | None = None
        self._epoch = 0

    def before_ask(self, question: Question, stamp: FrameStamp, *, aside: bool) -> Question:
        """Return the question after the newest answers, with the last one if it may be repeated."""
        self._begin(stamp.epoch)
        if not question.wants_answer:
            return question
        question = dataclasses.replace(question, history=tuple(self._newest))
        if aside or self._same_above is None or self._last is None or self._last.query != question.text:
            return question
        previous = PreviousAnswer(self._model_text(self._last), self._same_above)
        return dataclasses.replace(question, previous=previous)

    def holds_back(self, question: Question, text: str) -> bool:
        """Return True while an answer may repeat the previous one."""
        return question.previous is not None and question.previous.text.startswith(text)

    def on_answer(self, answer: FinishedAnswer) -> None:
        """Report an answer as unchanged if its text is exactly that of the previous one; note any other."""
        event = answer.event
        previous = answer.question.previous
        repeats = isinstance(event, Answer) and previous is not None and self._model_text(event) == previous.text
        if repeats and self._last is not None:
            answer.event = AnswerUnchanged(
                **structs.asdict(event), since_s=self._last.pts_s, probability=answer.reply.same
            )
        self._add(answer.event, answer.stamp.epoch)

    def on_recall(self, recalled: RecalledAnswer, stamp: FrameStamp) -> None:
        """Note an answer of an earlier run."""
        self._add(recalled.event, stamp.epoch)

    def _begin(self, epoch: int) -> None:
        """Forget the answers about frames of other epochs than this one."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self._last = None
        if not self._spans_cuts:
            self._newest.clear()

    def _add(self, event: AnswerPoint, epoch: int) -> None:
        """Add an answer about a frame of this epoch; one that is unchanged or invalid is ignored."""
        if isinstance(event, Answer):
            self._begin(epoch)
            self._last = event
            text = cut_to(printable(self._model_text(event)), HISTORY_CHARS_MAX)
            self._newest.append(PastAnswer(round(event.pts_s * NS_PER_S), text))

    def _model_text(self, answer: Answer) -> str:
        """Return the text of an answer as the model writes it."""
        if self._schema is None or answer.fields is None:
            return answer.text
        return self._schema.text_of(answer.fields)
