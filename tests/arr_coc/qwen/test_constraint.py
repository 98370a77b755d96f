"""Answers with a schema: every answer fits, greedy or sampled, alone or in a batch, after thoughts."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ModelError, OptionError
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen import constraint
from arr_coc.qwen.constraint import GrammarCompiler
from arr_coc.qwen.options import AnswerOptions, Decoding, Thinking
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession, SlotAnswer, SlotQuestion
from arr_coc.qwen.text_stream import Thoughts
from tests.arr_coc.qwen.batching.test_captured import run_first
from tests.arr_coc.qwen.test_session import QUERY, packet
from tests.arr_coc.qwen.test_thinking import ALWAYS, HYBRID, thinking_qwen
from tests.support.models import FAMILIES, tiny_qwen

STREET = AnswerSchema.parse('{"people": "integer", "weather": ["sun", "rain"], "open": "boolean"}')
CHOICES = AnswerSchema.of_choices(["a cat", "a red square", "red"])


def session(qwen: QwenVL, max_tokens: int = 200, slots: int = 1, **options: Any) -> AnswerSession:
    decoding = Decoding(max_tokens, temperature=options.pop("temperature", 0.0), top_p=options.pop("top_p", 1.0))
    return AnswerSession(qwen, AnswerOptions(decoding=decoding, **options), slots, options.pop("capture", None))


def ended(speaking: AnswerSession, *questions: SlotQuestion) -> list[SlotAnswer]:
    answers = speaking.ask(questions)
    while speaking.open_answers:
        speaking.step()
    for answer in answers:
        assert answer.error is None
    return answers


def text_of(answer: SlotAnswer) -> str:
    assert answer.result is not None
    return answer.result.text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_answer_fits(family: str, temperature: float) -> None:
    speaking = session(tiny_qwen(family), temperature=temperature, top_p=0.9)
    for schema in (STREET, CHOICES):
        (answer,) = ended(speaking, SlotQuestion(0, packet(), QUERY, schema=schema))
        fields = schema.fields_of(text_of(answer))
        assert schema.text_of(fields) == text_of(answer)


def test_slots_have_schemas_of_their_own() -> None:
    qwen = tiny_qwen()
    expected = [
        text_of(*ended(session(qwen), SlotQuestion(0, packet(), QUERY, schema=schema))) for schema in (STREET, CHOICES)
    ]
    free = text_of(*ended(session(qwen, 12), SlotQuestion(0, packet(), QUERY)))
    questions = [
        SlotQuestion(slot, packet(), QUERY, schema=schema) for slot, schema in enumerate((STREET, CHOICES, None))
    ]
    answers = ended(session(qwen, 12, slots=3), questions[2], questions[1])
    assert [text_of(answer) for answer in answers] == [free, expected[1]]
    answers = ended(session(qwen, slots=3), *questions[:2])
    assert [text_of(answer) for answer in answers] == expected


def test_a_captured_decoder_leaves_such_answers_out_and_goes_on() -> None:
    """An answer without a schema that begins before one with it, and ends after it, is what it is alone."""
    qwen = tiny_qwen()
    plain = text_of(*ended(session(qwen, 40), SlotQuestion(0, packet(), QUERY)))
    speaking = AnswerSession(qwen, AnswerOptions(decoding=Decoding(40)), 2, run_first)
    (first,) = speaking.ask([SlotQuestion(0, packet(), QUERY)])
    pieces = [first.piece]
    for _ in range(3):
        speaking.step()
        pieces.append(first.piece)
    (second,) = speaking.ask([SlotQuestion(1, packet(), QUERY, schema=CHOICES)])
    while not first.has_ended:
        speaking.step()
        pieces.append(first.piece)
    assert "".join(pieces) == plain
    assert CHOICES.fields_of(text_of(second))


def test_an_answer_that_reaches_the_limit_is_cut() -> None:
    (answer,) = ended(session(tiny_qwen(), 3), SlotQuestion(0, packet(), QUERY, schema=STREET))
    with pytest.raises(ValueError, match="not whole JSON"):
        STREET.fields_of(text_of(answer))


@pytest.mark.parametrize(("thinking", "template"), [("off", ALWAYS), ("hide", ALWAYS), ("hide", HYBRID)])
def test_the_schema_holds_after_thoughts(thinking: Thinking, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model thinks two tokens, if it may, and the answer that follows fits."""
    qwen = thinking_qwen(template)
    assert qwen.thought_ids is not None
    begin, end = qwen.thought_ids
    script = itertools.chain([] if template == ALWAYS else [begin], [*qwen.plain_token_ids("the cat"), end])
    from arr_coc.qwen import session as module

    stock = module.choose

    def choose(logits: torch.Tensor, *rest: Any) -> torch.Tensor:
        token = next(script, None) if thinking == "hide" else None
        if token is None:
            return stock(logits, *rest)
        assert logits[token] > -torch.inf
        return torch.tensor(token)

    monkeypatch.setattr(module, "choose", choose)
    speaking = session(qwen, thinking=thinking)
    (answer,) = ended(speaking, SlotQuestion(0, packet(), QUERY, schema=STREET))
    assert STREET.fields_of(text_of(answer))
    assert answer.result is not None
    assert (answer.result.thought_tokens > 0) == (thinking == "hide")


def test_without_thoughts_the_first_token_is_the_answers() -> None:
    qwen = thinking_qwen(HYBRID)
    begin, end = qwen.thought_ids or (0, 0)
    compiler = GrammarCompiler(qwen)
    for may_think in (False, True):
        answer_constraint = compiler.constraint(STREET)
        answer_constraint.follow(Thoughts(begin, end), may_think=may_think)
        logits = torch.zeros(int(qwen.model.config.get_text_config().vocab_size))
        answer_constraint.mask(logits)
        assert bool(logits[begin] == 0) == may_think
        assert 0 < int((logits == 0).sum()) < 5


def test_a_previous_answer_is_scored_among_the_answers_that_fit() -> None:
    """Greedy answers are likely among those that fit, however unlikely JSON is for the model."""
    qwen = tiny_qwen()
    (first,) = ended(session(qwen), SlotQuestion(0, packet(), QUERY, schema=CHOICES))
    previous = {"previous": text_of(first), "same_above": 0.0}
    (free,) = ended(session(qwen), SlotQuestion(0, packet(), QUERY, **previous))
    speaking = session(qwen)
    (bound,) = speaking.ask([SlotQuestion(0, packet(), QUERY, schema=CHOICES, **previous)])
    assert bound.has_ended
    assert text_of(bound) == text_of(first)
    assert free.same is not None
    assert bound.same is not None
    assert bound.same > 10 * free.same
    wrong = {"previous": "a dog", "same_above": 0.5}
    (other,) = ended(session(qwen), SlotQuestion(0, packet(), QUERY, schema=CHOICES, **wrong))
    assert other.same == 0.0
    assert text_of(other) == text_of(first)


def test_logits_that_are_not_finite_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    qwen = tiny_qwen()
    stock = qwen.model.lm_head.forward
    monkeypatch.setattr(qwen.model.lm_head, "forward", lambda hidden: torch.full_like(stock(hidden), torch.nan))
    (answer,) = session(qwen).ask([SlotQuestion(0, packet(), QUERY, schema=CHOICES)])
    assert "NaN or Inf" in str(answer.error)


def test_grammars_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint, "GRAMMARS_KEPT", 2)
    compiler = GrammarCompiler(tiny_qwen())
    schemas = [AnswerSchema.of_choices([str(number), "none"]) for number in range(3)]
    for schema in (*schemas[:2], schemas[0], schemas[2]):
        compiler.constraint(schema)
    assert list(compiler._grammars) == [schemas[0].text, schemas[2].text]


def test_a_schema_beyond_the_limits_of_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint, "LEXER_FUEL", 10)
    with pytest.raises(OptionError, match="the schema cannot be decoded: "):
        GrammarCompiler(tiny_qwen()).constraint(STREET)
    speaking = session(tiny_qwen())
    (answer,) = speaking.ask([SlotQuestion(0, packet(), QUERY, schema=STREET)])
    assert isinstance(answer.error, OptionError)


def test_a_missing_library_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(OptionError, match=r"need llguidance .*; pip install 'arr-coc-stream\[schema\]'"):
        GrammarCompiler(tiny_qwen())


def test_a_tokenizer_that_cannot_be_read_is_the_models_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    qwen = tiny_qwen()
    monkeypatch.setattr(type(qwen), "eos_ids", property(lambda _: frozenset({10**9})))
    with pytest.raises(ModelError, match=r"the tokenizer of .* cannot be used for answers with a schema"):
        GrammarCompiler(qwen)


def test_tokens_of_the_padded_vocabulary_never_come() -> None:
    qwen = tiny_qwen()
    vocabulary = int(qwen.model.config.get_text_config().vocab_size)
    answer_constraint = GrammarCompiler(qwen).constraint(STREET)
    logits = torch.zeros(vocabulary + 40)
    answer_constraint.mask(logits)
    assert bool((logits[vocabulary:] == -torch.inf).all())


class TestLibrary:
    @pytest.fixture
    def model(self) -> ARRCOCQwen:
        return ARRCOCQwen(tiny_qwen())

    PICTURE = np.zeros((64, 64, 3), np.uint8)

    def test_generate_returns_fields(self, model: ARRCOCQwen) -> None:
        answer = model.generate(
            self.PICTURE, QUERY, max_tokens=200, schema={"people": "integer", "weather": ["sun", "rain"]}
        )
        assert json.loads(answer.text) == answer.fields
        assert set(answer.fields or ()) == {"people", "weather"}
        assert (model.generate(self.PICTURE, QUERY, schema=["red", "blue"]).fields or {})["answer"] in ("red", "blue")

    def test_an_answer_that_is_cut_has_no_fields(self, model: ARRCOCQwen) -> None:
        assert model.generate(self.PICTURE, QUERY, max_tokens=2, schema={"people": "integer"}).fields is None
        assert model.generate(self.PICTURE, QUERY, max_tokens=2).fields is None

    def test_a_chat_has_fields(self, model: ARRCOCQwen) -> None:
        content = [{"type": "image", "image": self.PICTURE}, {"type": "text", "text": QUERY}]
        answer = model.generate(messages=[{"role": "user", "content": content}], schema=["red", "blue"])
        assert answer.text in ("red", "blue")
        assert answer.fields == {"answer": answer.text}

    def test_thoughts_in_the_text_are_refused(self, model: ARRCOCQwen) -> None:
        model = ARRCOCQwen(thinking_qwen())
        with pytest.raises(OptionError, match="thoughts that are part of an answer fit no schema"):
            model.generate(self.PICTURE, QUERY, schema=["red", "green"], thinking="show")
