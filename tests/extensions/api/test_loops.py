"""Loops in the text of a server's model, whatever pieces it comes in."""

from __future__ import annotations

import random

import pytest

from stream.extensions.api.loops import WORD, LoopFilter

LOOPS = {
    "Two men. " + "a red car, " * 20: "Two men. a red car, a red car,",
    "the " * 60: "the the the",
    "一辆红车，" * 20: "一辆红车，一辆红车，",
    "ha" * 400: "ha" * 16,
    "Yes. No. " * 20: "Yes. No. Yes. No. Yes",
}


def in_pieces(text: str, seed: int) -> list[str]:
    """The text in pieces of 1 to 9 characters."""
    rng = random.Random(seed)
    pieces = []
    while text:
        length = rng.randint(1, 9)
        pieces.append(text[:length])
        text = text[length:]
    return pieces


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("text", LOOPS)
def test_a_loop_ends_at_its_second_repetition_in_any_pieces(text: str, seed: int) -> None:
    loops = LoopFilter()
    shown = "".join(map(loops.push, in_pieces(text, seed)))
    assert loops.has_looped
    assert loops.holds
    assert shown + loops.finish() == LOOPS[text]
    assert loops.push("more") == ""


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "text",
    [
        "a red car, a red car, a red car, a red car and a  blue\n\n\tcar -- snake_case 1000000 ...",
        "the the the theatre",
        "hahahahahahahahahahahahahahahahahahaha",
        "  \n",
        "",
        "一辆红车，一辆红车，一辆红车，一辆蓝车",
    ],
)
def test_other_text_comes_whole(text: str, seed: int) -> None:
    loops = LoopFilter()
    shown = "".join(map(loops.push, in_pieces(text, seed)))
    assert text.startswith(shown)
    assert shown + loops.finish() == text
    assert not loops.has_looped


def test_text_is_held_back_only_while_it_may_be_a_third_copy() -> None:
    loops = LoopFilter()
    shown = []
    for piece in ("the", " cat", ", the", " cat", ",", " the", " cat", ", the ", "do", "g."):
        shown.append(loops.push(piece))
    assert shown == ["the", " cat", ", the", " cat", ",", " the", "", "", "", " cat, the dog."]


@pytest.mark.parametrize("text", LOOPS)
def test_every_character_is_of_a_part(text: str) -> None:
    odd = "é\u0301_\u200d\U0001f469\x00 \u00a0" + text
    assert "".join(WORD.findall(odd)) == odd
