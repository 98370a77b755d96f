"""Text of an answer from its tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from arr_coc.qwen.text_stream import TextStream
from tests.support.models import tiny_tokenizer

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


def test_names_and_boxes_keep_their_tokens() -> None:
    marks = ("<|vision_start|>", "<|vision_end|>")
    ids = [TOKENIZER.convert_tokens_to_ids(mark) for mark in (*marks, "<|im_start|>")]
    plain = TOKENIZER("cat 猫", add_special_tokens=False)["input_ids"]
    stream = TextStream(TOKENIZER, special_texts=dict(zip(ids[:2], marks, strict=True)))
    text = "".join(stream.push(token) for token in [ids[0], ids[0], *plain, ids[1], ids[2], *plain, ids[1]])
    assert text + stream.finish() == "<|vision_start|>" * 2 + "cat 猫<|vision_end|>cat 猫<|vision_end|>"
