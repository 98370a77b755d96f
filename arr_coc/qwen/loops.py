"""Answers that repeat themselves: the end of an answer whose last tokens are the same ones again and again.

Small models that take the likeliest tokens fall into such loops ("The Curious Case of Neural Text Degeneration",
arXiv:1904.09751): a word or a sentence makes itself likelier with each time that it comes, so a loop does not end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Token = TypeVar("Token", int, str)

PERIOD_MAX = 32
"""Longest repeated part, in tokens: a sentence of some 25 words."""

COPIES_MIN = 3
"""Least copies, one after another: people say a sentence twice."""

TOKENS_MIN = 32
"""Least tokens of all copies together: half of the 64 of an answer. So a word comes 32 times, ", a red car" of 4 tokens
8 times, and a sentence of 11 tokens 3 times. Entries of lists differ by a token, or are few."""

WORDLESS_TOKENS_MIN = 128
"""The same of a part without a letter, as rows of a table of numbers and the line below its head are."""

COPIES_KEPT = 2
"""Copies that stay in an answer: the first, and the one that shows that it came again."""


class LoopDetector(Generic[Token]):
    """Detector of an answer's loops, token by token, on the host. Tokens are numbers, or parts of the text.

    `count`: tokens so far. `held_from`: number of the token from which on the text may belong to a loop, and is better
    held back; `count` if there is none. Once an answer `has_looped`, it ends there.
    """

    def __init__(self) -> None:
        self.count = 0
        self.held_from = 0
        self.has_looped = False
        self._since_word = 0
        self._recent: deque[Token] = deque(maxlen=PERIOD_MAX)
        self._matches = [0] * PERIOD_MAX  # tokens in a row that equal the one a period before, for periods from 1 on

    def push(self, token: Token, *, is_word: bool = True) -> bool:
        """Take the next token; return True if the answer repeats itself. `is_word`: its text has a letter."""
        matches = self._matches
        period = 1
        for earlier in reversed(self._recent):
            matches[period - 1] = matches[period - 1] + 1 if earlier == token else 0
            period += 1
        self._recent.append(token)
        self.count += 1
        self._since_word = 0 if is_word else self._since_word + 1
        held_tokens = 0
        for period, matched in enumerate(matches, 1):
            tokens = matched + period
            if tokens <= COPIES_KEPT * period:
                continue
            held_tokens = max(held_tokens, tokens - COPIES_KEPT * period)
            least = TOKENS_MIN if self._since_word < period else WORDLESS_TOKENS_MIN
            if tokens >= max(least, COPIES_MIN * period):
                self.has_looped = True
                break
        self.held_from = self.count - held_tokens
        return self.has_looped

    def third_copies(self) -> Iterator[Token]:
        """Yield the tokens that would be held back if they came next: with each, a third copy begins or goes on."""
        for period, matched in enumerate(self._matches, 1):
            if matched >= (COPIES_KEPT - 1) * period:
                yield self._recent[-period]
