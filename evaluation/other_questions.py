"""Questions about drawn pictures of no suite, for constants of ablations: nothing is measured on them."""

from __future__ import annotations

from functools import cache

from evaluation.questions import EvalQuestion
from training.cases import random_samples

FIRST_OTHER = 7_000_000
"""Clips from this number on, of the training split; trainers stay below."""


@cache
def other_questions(count: int) -> tuple[EvalQuestion, ...]:
    """Questions about `count` clips of one to four frames, one about each that gives a question."""
    samples = random_samples("train", FIRST_OTHER, count, questions=1)
    return tuple(EvalQuestion.of(index, sample) for index, sample in enumerate(samples))
