"""How right an answer is, in [0, 1].

An answer counts when it is one of the right ones word for word, once both are normalised as VQA's evaluation does
(Antol et al. 2015, arXiv:1505.00468): case, punctuation, articles and number words play no part. Where ten people
answered, it counts min(votes / 3, 1). A description counts the share of its facts that it holds.
"""

from __future__ import annotations

import re

from evaluation.question import Question

VOTERS = 10
"""How many answers make a vote: VQAv2 has ten to every question."""

VOTES_FOR_RIGHT = 3

_ARTICLES = {"a", "an", "the"}
_NUMBERS = dict(
    zip(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
        map(str, range(11)),
        strict=True,
    )
)
_WORD = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)*")


def normalise(text: str) -> str:
    """Lower-case words and numbers with single blanks between; articles go unless nothing else is there."""
    words = [_NUMBERS.get(word, word) for word in _WORD.findall(text.casefold())]
    return " ".join([word for word in words if word not in _ARTICLES] or words)


def score(question: Question, text: str) -> float:
    """What `text` is worth as an answer."""
    said = normalise(text)
    if question.facts:
        return sum(f" {normalise(fact)} " in f" {said} " for fact in question.facts) / len(question.facts)
    votes = sum(normalise(answer) == said for answer in question.answers)
    if len(question.answers) == VOTERS:
        return min(votes / VOTES_FOR_RIGHT, 1.0)
    return float(votes > 0)
