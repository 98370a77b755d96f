"""Tokens to text while they come, without ever showing half a character."""

from __future__ import annotations

from typing import Any

_UNFINISHED = "\ufffd"


class TextStream:
    """Turns token ids into pieces of text whose concatenation is the decoded whole.

    A token may end in the middle of a UTF-8 character; text is held back until the character is whole.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown_ids = 0
        self._context_ids = 0

    def push(self, token_id: int) -> str:
        """The text that this token completes; may be empty."""
        self._ids.append(token_id)
        return self._fresh(final=False)

    def finish(self) -> str:
        """What is still held back, with U+FFFD where a character never became whole."""
        return self._fresh(final=True)

    def _fresh(self, final: bool) -> str:
        before = self._decode(self._ids[self._context_ids : self._shown_ids])
        text = self._decode(self._ids[self._context_ids :])
        if len(text) <= len(before) or (text.endswith(_UNFINISHED) and not final):
            return ""
        self._context_ids, self._shown_ids = self._shown_ids, len(self._ids)
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
