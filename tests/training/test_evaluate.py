"""Evaluation counts an answer as right only when it is right word for word."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from training.clips.demo_worlds import KINDS
from training.evaluate import accuracy, held_out


class Oracle:
    """Gives every true answer, or, for captions, only the first thing of them."""

    def __init__(self, *, half_captions: bool) -> None:
        self._answers = iter(
            question.answer.split(",")[0].split(" and ")[0]
            if half_captions and question.kind == "caption"
            else question.answer
            for _, questions in held_out(12)
            for question in questions
        )

    def generate(self, image: Any, query: str, budget: int) -> SimpleNamespace:
        return SimpleNamespace(text=next(self._answers))


def test_true_answers_are_all_right() -> None:
    shares = accuracy(Oracle(half_captions=False), 12, 64)  # type: ignore[arg-type]
    assert shares == dict.fromkeys((*KINDS, "no number", "things in captions"), 1.0)


def test_half_a_caption_is_wrong_though_some_of_its_things_are_right() -> None:
    shares = accuracy(Oracle(half_captions=True), 12, 64)  # type: ignore[arg-type]
    assert shares["caption"] < 0.5
    assert shares["caption"] < shares["things in captions"] < 1.0
    assert shares["colour"] == 1.0


@pytest.mark.parametrize("worlds", [3])
def test_held_out_worlds_are_the_same_every_time(worlds: int) -> None:
    first, second = list(held_out(worlds)), list(held_out(worlds))
    assert [questions for _, questions in first] == [questions for _, questions in second]
    assert [world.facts for world, _ in first] == [world.facts for world, _ in second]
