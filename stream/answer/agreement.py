"""Agreement of two answers, by their words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

_WORDS = re.compile(r"\w+(?:['’.,]\w+)*")


@dataclass(frozen=True, slots=True)
class TextAgreement:
    """Agreement of two texts. `same`: equal but for case, punctuation and spaces. `words`: share of equal words."""

    same: bool
    words: float


def text_agreement(text: str, other: str) -> TextAgreement:
    """Return how far two texts agree.

    The share is twice the number of words that match in order, divided by the number of words of both (Ratcliff and
    Obershelp's measure, as difflib has it); two texts without a word agree.
    """
    first = words_of(text)
    second = words_of(other)
    if not first and not second:
        return TextAgreement(True, 1.0)
    return TextAgreement(first == second, SequenceMatcher(None, first, second, autojunk=False).ratio())


def words_of(text: str) -> list[str]:
    """Return the words of a text without case and punctuation: `"It's 3.5 m!"` is `it's`, `3.5`, `m`."""
    return _WORDS.findall(text.casefold())
