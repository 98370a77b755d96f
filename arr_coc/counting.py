"""Numbers with their nouns, for messages: `1 tile`, `2 tiles`."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """The number and the noun in the form that goes with it; `plural` where that is not the noun and an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def of_counted(number: int, whole: int, noun: str) -> str:
    """So many of a whole: `1 of 4 tokens`, `1 of 1 token`."""
    return f"{number} of {counted(whole, noun)}"
