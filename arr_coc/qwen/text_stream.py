"""Text of an answer, token by token: whole characters, up to a stop string, and without hidden thoughts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_UNFINISHED = "\ufffd"


@dataclass(slots=True)
class Thoughts:
    """State of the thoughts before an answer, enclosed by the tokens `begin` and `end`: whether they have begun and
    ended, and, if they have begun, the number of `tokens` so far, including these two and space before them.
    `is_visible`: thoughts are part of the answer's text."""

    begin: int
    end: int
    is_visible: bool = False
    has_begun: bool = False
    has_ended: bool = False
    tokens: int = 0

    def take(self, token: int, *, blank: bool) -> bool:
        """Count the next token; return True if it belongs to thoughts, or is `blank`, white space that may precede
        them. An answer that begins with other text has none. Not after they have ended."""
        self.has_begun = self.has_begun or token == self.begin
        self.has_ended = token == self.end if self.has_begun else not blank
        self.tokens += 1
        return self.has_begun or blank


class TextStream:
    """Incremental detokenizer: pieces of text whose concatenation is the decoded text, up to the first of
    `stop_strings` that follows thoughts.

    A token may end in the middle of a UTF-8 character; text is held back until it is complete. `has_stopped`:
    the last piece ended with a stop string, and no text follows. Hidden `thoughts` are left out, with the space after
    them. `special_texts`: texts of the special tokens that stay in the text; others are left out.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop_strings: tuple[str, ...] = (),
        thoughts: Thoughts | None = None,
        special_texts: Mapping[int, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._special_texts = special_texts or {}
        self._stop_strings = stop_strings
        self._thoughts = thoughts
        self._begins = False
        self._recent = ""
        self.has_stopped = False
        self._ids: list[int] = []
        self._shown_ids = 0
        self._context_ids = 0

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; may be empty."""
        thoughts = self._thoughts
        precedes = False  # whether it belongs to thoughts, or is white space that may precede them
        if thoughts is not None and not thoughts.has_ended:
            precedes = thoughts.take(token_id, blank=not self._decode([token_id]).strip())
        if precedes and thoughts is not None and not thoughts.is_visible:
            # White space is kept until it is known whether thoughts follow.
            self._begins = thoughts.has_begun
            self._ids = [] if self._begins else [*self._ids, token_id]
            return ""
        self._ids.append(token_id)
        piece = self._fresh(final=False)
        if self._begins:
            piece = piece.lstrip()
            self._begins = not piece
        return piece if precedes else self._up_to_stop(piece)

    @property
    def thinks(self) -> bool:
        """True if thoughts have begun and not ended."""
        return self._thoughts is not None and self._thoughts.has_begun and not self._thoughts.has_ended

    @property
    def thought_tokens(self) -> int:
        """Number of tokens of thoughts so far."""
        if self._thoughts is not None and self._thoughts.has_begun:
            return self._thoughts.tokens
        return 0

    def finish(self) -> str:
        """Return the text that is still held back, with U+FFFD for an incomplete character."""
        return self._up_to_stop(self._fresh(final=True))

    def _up_to_stop(self, piece: str) -> str:
        if self.has_stopped or not self._stop_strings:
            return "" if self.has_stopped else piece
        text = self._recent + piece
        ends = [text.find(stop) + len(stop) for stop in self._stop_strings if stop in text]
        if ends:
            self.has_stopped = True
            return text[len(self._recent) : min(ends)]
        self._recent = text[max(0, len(text) - max(map(len, self._stop_strings)) + 1) :]
        return piece

    def _fresh(self, final: bool) -> str:
        before = self._decode(self._ids[self._context_ids : self._shown_ids])
        text = self._decode(self._ids[self._context_ids :])
        if len(text) <= len(before) or (text.endswith(_UNFINISHED) and not final):
            return ""
        self._context_ids = self._shown_ids
        self._shown_ids = len(self._ids)
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        if self._special_texts.keys().isdisjoint(ids):
            return self._decode_plain(ids)
        at = next(at for at, token in enumerate(ids) if token in self._special_texts)
        return self._decode_plain(ids[:at]) + self._special_texts[ids[at]] + self._decode(ids[at + 1 :])

    def _decode_plain(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
