"""Reuse of an earlier answer: its probability in one pass, and the answer without it; text before a question."""

from __future__ import annotations

import math

import pytest
import torch

from arr_coc.errors import NonFiniteError
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession, SlotAnswer, SlotQuestion
from tests.arr_coc.qwen.test_session import OTHER_QUERY, QUERY, packet
from tests.support.models import FAMILIES, tiny_qwen

PREVIOUS = "a red square"
HISTORY = "Earlier answers:\n<2.0 seconds> a red square\n"


def session(qwen: QwenVL, max_tokens: int = 12, slots: int = 1, *, feedback: bool = True) -> AnswerSession:
    return AnswerSession(qwen, AnswerOptions(decoding=Decoding(max_tokens=max_tokens), feedback=feedback), slots)


def ended(speaking: AnswerSession, *questions: SlotQuestion) -> list[SlotAnswer]:
    answers = speaking.ask(questions)
    while speaking.open_answers:
        speaking.step()
    return answers


def chance_by_steps(speaking: AnswerSession, text: str, *, ends: bool = True) -> float:
    """Return the least probability of the text's tokens, each after a prefill of all tokens before it."""
    qwen, slot = speaking.qwen, speaking.slots[0]
    ids, likely = qwen.plain_token_ids(text), []
    for count in range(len(ids) + ends):
        speaking.forget()
        preparation = slot.prepare(packet(), QUERY)
        preparation.prompt.part.text(ids[:count])
        with torch.inference_mode():
            hidden = qwen.language_model(**preparation.prompt.part.inputs(), past_key_values=slot.prompts.cache.kv)
            chances = torch.softmax(qwen.model.lm_head(hidden.last_hidden_state[0, -1]).double(), dim=-1)
        expected = [ids[count]] if count < len(ids) else list(qwen.eos_ids)
        likely.append(float(chances[expected].sum()))
    return min(likely)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_score_is_the_least_probability_of_a_token(family: str) -> None:
    qwen = tiny_qwen(family)
    (answer,) = session(qwen).ask([SlotQuestion(0, packet(), QUERY, previous=PREVIOUS, same_above=1.0)])
    assert answer.same == pytest.approx(chance_by_steps(session(qwen), PREVIOUS), rel=1e-4)


def test_an_answer_of_full_length_need_not_end() -> None:
    qwen = tiny_qwen()
    tokens = len(qwen.plain_token_ids(PREVIOUS))
    (answer,) = session(qwen, tokens).ask([SlotQuestion(0, packet(), QUERY, previous=PREVIOUS)])
    assert answer.same == pytest.approx(chance_by_steps(session(qwen), PREVIOUS, ends=False), rel=1e-4)


def test_a_previous_answer_above_max_tokens_is_not_scored() -> None:
    qwen = tiny_qwen()
    speaking = session(qwen, len(qwen.plain_token_ids(PREVIOUS)) - 1)
    (answer,) = ended(speaking, SlotQuestion(0, packet(), QUERY, previous=PREVIOUS, same_above=0.0))
    assert answer.same is None
    assert answer.result is not None
    assert answer.result.work.text_tokens > 0


def test_a_likely_previous_answer_is_returned_without_decoding() -> None:
    qwen = tiny_qwen()
    plain = session(qwen)
    (first,) = ended(plain, SlotQuestion(0, packet(), QUERY))
    (repetition,) = plain.ask([SlotQuestion(0, packet(), QUERY, previous=PREVIOUS, same_above=0.0)])
    assert repetition.has_ended
    assert repetition.result is not None
    assert first.result is not None
    assert (repetition.piece, repetition.result.text, repetition.result.work.text_tokens) == (PREVIOUS, PREVIOUS, 0)
    assert repetition.result.feedback is not None
    assert repetition.result.work.flops > first.result.work.flops // 4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("slots", [1, 2])
def test_an_answer_after_the_score_is_that_without_it(family: str, slots: int) -> None:
    qwen, queries = tiny_qwen(family), (QUERY, OTHER_QUERY)
    plain = ended(
        session(qwen, slots=slots), *(SlotQuestion(slot, packet(slot), queries[slot]) for slot in range(slots))
    )
    scored = ended(
        session(qwen, slots=slots),
        *(SlotQuestion(slot, packet(slot), queries[slot], previous=PREVIOUS, same_above=1.0) for slot in range(slots)),
    )
    for answer, scored_answer in zip(plain, scored, strict=True):
        assert answer.result is not None
        assert scored_answer.result is not None
        assert scored_answer.result.token_ids == answer.result.token_ids
        assert answer.result.feedback is not None
        assert scored_answer.result.feedback is not None
        assert (scored_answer.result.feedback.attention == answer.result.feedback.attention).all()
        assert scored_answer.result.work.prefilled_tokens == answer.result.work.prefilled_tokens


def test_history_stands_before_the_question_and_changes_no_embedding() -> None:
    qwen = tiny_qwen()
    speaking = session(qwen)
    (plain,) = ended(speaking, SlotQuestion(0, packet(), QUERY))
    (answered,) = ended(speaking, SlotQuestion(0, packet(), QUERY, history=HISTORY))
    (joined_answer,) = ended(speaking, SlotQuestion(0, packet(), HISTORY + QUERY))
    assert plain.result is not None
    assert answered.result is not None
    assert joined_answer.result is not None
    assert answered.result.token_ids == joined_answer.result.token_ids
    assert answered.result.work.prefilled_tokens == joined_answer.result.work.prefilled_tokens
    assert answered.result.feedback is not None
    assert plain.result.feedback is not None
    assert (answered.result.feedback.similarity == plain.result.feedback.similarity).all()


def test_a_score_that_is_not_finite_is_the_error_of_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    qwen = tiny_qwen()
    speaking = session(qwen)
    inner = qwen.model.lm_head.forward

    def spoilt(hidden: torch.Tensor) -> torch.Tensor:
        return inner(hidden) * (math.nan if hidden.ndim == 2 else 1.0)

    monkeypatch.setattr(qwen.model.lm_head, "forward", spoilt)
    (answer,) = speaking.ask([SlotQuestion(0, packet(), QUERY, previous=PREVIOUS)])
    assert isinstance(answer.error, NonFiniteError)
    assert len(speaking.slots[0].prompts.cache) == 0
