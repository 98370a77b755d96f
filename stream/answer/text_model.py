"""Model that answers prompts of text, without pictures."""

from __future__ import annotations

from typing import Protocol

STATEMENT_TOKENS = 160
"""Most tokens of an answer."""


class TextModel(Protocol):
    """Model that answers prompts of text, in at most STATEMENT_TOKENS tokens."""

    @property
    def name(self) -> str:
        """Name of the model."""
        ...

    @property
    def known_world(self) -> str | None:
        """The only world that the model knows; None for a general one."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Most tokens of a prompt."""
        ...

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, or a little more."""
        ...

    def complete(self, prompt: str) -> str:
        """Return the answer to a prompt."""
        ...
