"""Yes or no from logits: which tokens count, what they say, and that a look costs its own tokens only."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tiny_qwen import tiny_qwen

from arr_coc.errors import ContextLengthError, ModelError, NonFiniteError
from arr_coc.qwen.frame_window import FrameWindow
from arr_coc.qwen.options import AnswerOptions, Decoding, WindowOptions
from arr_coc.qwen.positions import grid_regions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.yes_no import YesNoTokens, verdict, yes_no_tokens
from arr_coc.types import FrameStamp, TileGrid, TokenPacket

GRID = TileGrid.of(96, 128)
CAPTION, QUESTION = "Say what happens.", "Is the cat sleeping?"
TOKENS = YesNoTokens(yes=(1, 2), no=(3,))


def knowing(*words: str) -> QwenVL:
    """A tiny model whose tokenizer has a token for each of these words."""
    qwen = tiny_qwen()
    qwen.tokenizer.add_tokens(list(words))
    return qwen


def session(max_tokens: int = 4) -> AnswerSession:
    return AnswerSession(knowing("yes", "No"), AnswerOptions(decoding=Decoding(max_tokens=max_tokens)))


def packet(seed: int = 0) -> TokenPacket:
    random = np.random.default_rng(seed)
    regions = grid_regions(GRID)[:6].numpy().astype(np.int32)
    pixels = random.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    return TokenPacket(FrameStamp(seed, 0, 0, epoch=1), GRID, regions, np.ones(6, np.float32), pixels)


def test_tokens_that_spell_yes_or_no_count() -> None:
    qwen = knowing("yes", "Yes", "No")
    found = yes_no_tokens(qwen.tokenizer, qwen.model_id)
    assert [qwen.tokenizer.decode([token]) for token in (*found.yes, *found.no)] == ["yes", "Yes", "No"]


@pytest.mark.parametrize(("words", "missing"), [((), "yes"), (("No",), "yes"), (("yes",), "no")])
def test_a_tokenizer_without_them_is_refused(words: tuple[str, ...], missing: str) -> None:
    with pytest.raises(ModelError, match=f"tiny-qwen3_vl has no single token for {missing},"):
        yes_no_tokens(knowing(*words).tokenizer, "tiny-qwen3_vl")


def test_a_token_for_the_unknown_is_neither() -> None:
    class Unknowing:
        def __call__(self, text: str, **options: bool) -> dict[str, list[int]]:
            return {"input_ids": [0]}

        def decode(self, ids: list[int]) -> str:
            return "<unk>"

    with pytest.raises(ModelError):
        yes_no_tokens(Unknowing(), "tiny")


def test_spellings_add_up() -> None:
    found = verdict(torch.tensor([0.3, 0.1, 0.2, 0.3, 0.1]).log(), TOKENS)
    assert found.yes == pytest.approx(0.5)
    assert found.certain == pytest.approx(0.6)


def test_logits_far_apart_are_still_probabilities() -> None:
    found = verdict(torch.tensor([0.0, 900.0, -900.0, -900.0]), TOKENS)
    assert (found.yes, found.certain) == (1.0, 1.0)
    assert verdict(torch.tensor([900.0, -900.0, -900.0, -900.0]), TOKENS).certain == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(NonFiniteError, match="yes or no hold NaN or Inf"):
        verdict(torch.tensor([0.0, 1.0, bad, 0.0]), TOKENS)


def test_a_look_is_what_the_first_token_of_an_answer_would_be() -> None:
    looking, speaking = session(), session(max_tokens=1)
    speaking.qwen = looking.qwen
    with torch.no_grad():
        head = looking.qwen.model.lm_head.weight
        head[looking.yes_no.no[0]] = 50 * head.abs().max()  # whatever is seen, one of the two wins
        head[looking.yes_no.yes[0]] = -head[looking.yes_no.no[0]]
    found = looking.look(packet(), QUESTION)
    said = "".join(speaking.answer(packet(), QUESTION))
    assert found.certain > 0.99
    assert said == ("yes" if found.yes > 0.5 else "No")
    assert (looking.last.text, looking.last.text_tokens) == ("", 0)
    assert looking.last.prefill_ms > 0
    assert looking.last.feedback.attention.max() == 1


def test_looking_costs_its_own_tokens_beside_an_answer() -> None:
    speaking = session()
    alone = "".join(session().answer(packet(), CAPTION))
    speaking.look(packet(), QUESTION)
    whole_prompt = speaking.last.prefilled_tokens
    assert "".join(speaking.answer(packet(), CAPTION)) == alone
    speaking.look(packet(), QUESTION)
    assert speaking.last.prefilled_tokens == len(speaking.prompts.question(QUESTION))
    assert speaking.last.prefilled_tokens < whole_prompt


def test_a_look_is_the_same_after_other_questions() -> None:
    fresh, used = session(), session()
    "".join(used.answer(packet(1), CAPTION))
    assert used.look(packet(), QUESTION).yes == pytest.approx(fresh.look(packet(), QUESTION).yes, abs=1e-6)


def test_a_look_at_a_window_sees_its_frames() -> None:
    looking = session()
    window = FrameWindow(WindowOptions(2))
    first = looking.look(packet(0), QUESTION, window)
    second = looking.look(packet(1), QUESTION, window)
    assert len(looking.last.shown) == 2
    assert second.yes != first.yes


def test_a_frame_that_is_looked_at_and_answered_about_enters_a_window_once() -> None:
    speaking, window = session(), FrameWindow(WindowOptions(2))
    speaking.look(packet(0), QUESTION, window)
    "".join(speaking.answer(packet(0), CAPTION, None, window))
    assert speaking.last.prefilled_tokens == len(speaking.prompts.question(CAPTION))
    assert len(window.frames) == 1


def test_what_looks_keep_does_not_grow() -> None:
    looking = session()
    kept = []
    for seed in range(6):
        looking.look(packet(seed), QUESTION)
        kept.append(looking.last.kept_bytes)
    assert len(set(kept)) == 1


def test_a_question_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ContextLengthError, match="ask a shorter question"):
        session().look(packet(), "why " * 4000)
