"""Choosing tokens, and the decode loop's ends."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.errors import OptionError
from arr_coc.qwen.decode import PrefixCache, PromptPart, TextStream, choose, decode, prefill
from arr_coc.qwen.options import Decoding
from arr_coc.qwen.qwenvl import QwenVL
from tests.support.models import SPECIAL_TOKENS, tiny_qwen, tiny_tokenizer

LOGITS = torch.tensor([0.0, 3.0, 2.0, -1.0])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prompted(qwen: QwenVL) -> tuple[torch.Tensor, PromptPart, PrefixCache]:
    part, cache = PromptPart(qwen, 0, 0), PrefixCache()
    part.text(qwen.token_ids("Say what happens."))
    return prefill(qwen, part, cache.kv), part, cache


def test_temperature_zero_takes_the_likeliest() -> None:
    assert choose(LOGITS, Decoding(), None) == 1


def test_a_small_nucleus_holds_the_likeliest_alone() -> None:
    options = Decoding(temperature=2.0, top_p=0.01)
    assert {int(choose(LOGITS, options, seeded(seed))) for seed in range(20)} == {1}


def test_a_nucleus_ends_where_its_mass_is_reached() -> None:
    """Probabilities 0.70, 0.26, 0.03, 0.01: of 0.9 the first two."""
    options = Decoding(temperature=1.0, top_p=0.9)
    assert {int(choose(LOGITS, options, seeded(seed))) for seed in range(60)} == {1, 2}


def test_sampling_follows_the_probabilities() -> None:
    generator, options = seeded(0), Decoding(temperature=1.0)
    drawn = torch.stack([choose(LOGITS, options, generator) for _ in range(2000)]).bincount(minlength=4) / 2000
    torch.testing.assert_close(drawn, torch.softmax(LOGITS, 0), atol=0.03, rtol=0)


def test_the_same_seed_draws_the_same_answer() -> None:
    qwen = tiny_qwen()
    answers = []
    for seed in (5, 5, 6):
        logits, part, cache = prompted(qwen)
        options = Decoding(max_tokens=10, temperature=1.5, seed=seed)
        answers.append(list(decode(qwen, logits, part.position, cache.kv, options)))
    assert answers[0] == answers[1] != answers[2]


def test_at_most_so_many_tokens_and_one_step_less() -> None:
    qwen = tiny_qwen()
    logits, part, cache = prompted(qwen)
    held = len(cache)
    assert len(list(decode(qwen, logits, part.position, cache.kv, Decoding(max_tokens=5)))) == 5
    assert len(cache) == held + 4


@pytest.mark.parametrize("token", ["<|im_end|>", "<|endoftext|>"])
def test_every_end_token_ends_the_answer(token: str) -> None:
    qwen = tiny_qwen()
    logits, part, cache = prompted(qwen)
    logits = logits.clone()
    logits[SPECIAL_TOKENS.index(token)] = 100
    assert list(decode(qwen, logits, part.position, cache.kv, Decoding())) == []


@pytest.mark.parametrize(
    "options", [{"max_tokens": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_values_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        Decoding(**options)  # type: ignore[arg-type]


TOKENIZER = tiny_tokenizer()


def pieces_of(ids: list[int]) -> tuple[list[str], str]:
    stream = TextStream(TOKENIZER)
    return [stream.push(token) for token in ids], stream.finish()


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd"), max_size=20))
def test_pieces_make_the_whole_text(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    pieces, rest = pieces_of(ids)
    assert "".join(pieces) + rest == TOKENIZER.decode(ids, skip_special_tokens=True)
    assert rest == ""
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, 399), max_size=30))
def test_any_tokens_make_their_own_text(ids: list[int]) -> None:
    pieces, rest = pieces_of(ids)
    assert "".join(pieces) + rest == TOKENIZER.decode(ids, skip_special_tokens=True)


def test_a_character_waits_until_it_is_whole() -> None:
    ids = TOKENIZER("猫", add_special_tokens=False)["input_ids"]
    assert len(ids) == 3
    assert pieces_of(ids) == (["", "", "猫"], "")
    assert pieces_of(ids[:2]) == (["", ""], "\ufffd")
