"""`QwenBatchAnswerModel`: a Qwen model that answers several clients at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stream.answer.batching.scheduler import BatchQuestion
from stream.answer.batching.slots import ClientSlots
from stream.answer.model import QwenAnswerModel, open_qwen, stats_of
from stream.config import Config

if TYPE_CHECKING:
    from arr_coc.qwen.batching.session import BatchSession, SlotAnswer, SlotQuestion
    from arr_coc.qwen.options import WindowOptions


QUESTION_TOKENS = 256
"""Tokens that a question and the prompt around it may take, where the memory for several answers is checked
beforehand."""


class QwenBatchAnswerModel(QwenAnswerModel):
    """Qwen model in several slots, with windows and incremental encoding as `QwenAnswerModel`."""

    def __init__(self, batch: BatchSession, window: WindowOptions | None = None) -> None:
        super().__init__(batch.session(0), window)
        self.slots = batch.slots
        self._batch = batch
        self._table = ClientSlots(batch.slots)
        self._questions: dict[int, BatchQuestion] = {}

    def select_client(self, client: bytes) -> None:
        """For what is asked alone: in the client's slot, where it holds one."""
        if client in self._table:
            self._session = self._batch.session(self._table[client])
        super().select_client(client)

    def drop_client(self, client: bytes) -> None:
        """Nothing of a client stays in its slot."""
        for slot in self._table.drop(client):
            self._questions.pop(slot, None)
            self._batch.forget(slot)
        super().drop_client(client)

    def hold(self, client: bytes) -> None:
        self._table.hold(client)

    def release(self, client: bytes) -> None:
        if client in self._table:
            slot = self._table[client]
            self._questions.pop(slot, None)
            self._batch.stop(slot)
        self._table.release(client)

    def ask(self, questions: Sequence[BatchQuestion]) -> None:
        answers = self._batch.ask([self._slot_question(question) for question in questions])
        for question, answer in zip(questions, answers, strict=True):
            self._questions[answer.slot] = question
            self._note(answer)

    def step(self) -> Sequence[BatchQuestion]:
        return [self._note(answer) for answer in self._batch.step()]

    def finish(self, question: BatchQuestion) -> None:
        self._questions[self._table[question.client]] = question
        self._note(self._batch.finish(self._table[question.client]))

    def _slot_question(self, question: BatchQuestion) -> SlotQuestion:
        from arr_coc.qwen.batching.session import SlotQuestion

        self.select_client(question.client)
        return SlotQuestion(
            self._table[question.client],
            question.packet,
            question.query,
            self._window,
            self._visions.get(question.client),
            yes_no=question.yes_no,
        )

    def _note(self, answer: SlotAnswer) -> BatchQuestion:
        """Note in its question what came of an answer."""
        question = self._questions[answer.slot]
        question.piece, question.ended, question.error = answer.piece, answer.ended, answer.error
        if answer.score is not None:
            question.score = answer.score.yes, answer.score.mass
        if answer.result is not None:
            question.stats = stats_of(answer.result)
        if answer.ended:
            del self._questions[answer.slot]
        return question


def load_batch_model(config: Config) -> QwenBatchAnswerModel:
    """Load the model that `answer.model` names, with `answer.slots`.

    Raises ModelError, and OptionError for a window out of range, more slots than the memory holds, or a model that
    answers one client at a time only.
    """
    from arr_coc.qwen.deferred_imports import deferred_imports

    with deferred_imports(config.answer.model):
        from arr_coc.qwen.batching.session import BatchSession
        from arr_coc.qwen.batching.slots import check_slots

        qwen, options, window = open_qwen(config)
        frames = 1 if window is None else window.frames
        visual = frames * config.allocate.max_tokens
        check_slots(qwen, config.answer.slots, visual + QUESTION_TOKENS + config.answer.max_tokens)
        return QwenBatchAnswerModel(BatchSession(qwen, options, config.answer.slots), window)
