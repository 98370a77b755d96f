"""The small tokenizer says anything, and the words of the drawn world in one token each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.config import DEFAULT_QUERY
from stream.scenes.drawing import COLOURS, SHAPES
from training.model.network import VOCABULARY
from training.model.tokenizer import SPECIAL_TOKENS, scenes_tokenizer, special_ids, train_tokenizer

TOKENIZER = scenes_tokenizer()


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert TOKENIZER.decode(ids) == text
    assert max(ids, default=0) < VOCABULARY
    assert all(index >= len(SPECIAL_TOKENS) for index in ids)


def test_a_new_one_is_made_the_same_every_time() -> None:
    first, second = train_tokenizer(), train_tokenizer()
    assert first.to_str() == second.to_str()
    assert first.get_vocab_size() <= VOCABULARY


@pytest.mark.parametrize("word", [*SHAPES, *COLOURS, "moves", "stays", "still", "left", "right", "up", "down"])
def test_words_of_the_world_are_one_token(word: str) -> None:
    assert len(TOKENIZER.tokenize(f" {word}")) == 1


def test_digits_stand_alone() -> None:
    assert TOKENIZER.tokenize(" 42.") == ["Ġ", "4", "2", "."]


def test_the_configuration_names_the_special_tokens() -> None:
    for token in SPECIAL_TOKENS:
        assert TOKENIZER.convert_tokens_to_ids(token) == SPECIAL_TOKENS.index(token)
    assert special_ids()["image_token_id"] == TOKENIZER.convert_tokens_to_ids("<|image_pad|>")
    assert TOKENIZER.eos_token == "<|im_end|>"


def test_the_chat_template_is_qwens() -> None:
    content = [{"type": "image"}, {"type": "text", "text": DEFAULT_QUERY}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    assert TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Say what happens.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
