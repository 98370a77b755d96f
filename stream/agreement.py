"""Whether two answers say the same. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

_WORDS = re.compile(r"\w+(?:['’.,]\w+)*")


@dataclass(frozen=True, slots=True)
class Agreement:
    """`same`: equal but for case, punctuation and spaces. `words`: share of equal words, in [0, 1]."""

    same: bool
    words: float


def agreement(one: str, other: str) -> Agreement:
    """How far two texts agree.

    The share is twice the number of words that match in order, divided by the number of words of both (Ratcliff and
    Obershelp's measure, as difflib has it); two texts without a word agree.
    """
    first, second = words_of(one), words_of(other)
    if not first and not second:
        return Agreement(True, 1.0)
    return Agreement(first == second, SequenceMatcher(None, first, second, autojunk=False).ratio())


def words_of(text: str) -> list[str]:
    """The words of a text without case and punctuation: `"It's 3.5 m!"` is `it's`, `3.5`, `m`."""
    return _WORDS.findall(text.casefold())
