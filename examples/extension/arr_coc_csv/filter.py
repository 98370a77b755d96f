"""Answer filter that hides words."""

from __future__ import annotations

import re

import msgspec

from arr_coc_csv.section import CsvSection
from stream.answer.filters import AnswerFilter, FinishedAnswer
from stream.config import Config


class HiddenWords(AnswerFilter):
    """Words that each answer shows as stars."""

    shows_whole = True  # a piece of an answer may end within a word

    def __init__(self, words: tuple[str, ...]) -> None:
        self._pattern = re.compile(rf"\b({'|'.join(map(re.escape, words))})\b", re.IGNORECASE)

    @classmethod
    def of(cls, config: Config) -> HiddenWords | None:
        """Return the filter of a run, None without such words."""
        words = CsvSection.of(config).hide
        return cls(words) if words else None

    def on_answer(self, answer: FinishedAnswer) -> None:
        text = self._pattern.sub("***", answer.event.text)
        answer.event = msgspec.structs.replace(answer.event, text=text)
