"""Loading of a model that is asked for text about text: on this machine, or behind an API."""

from __future__ import annotations

from typing import Protocol

from stream.config import Config

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


def load_text_model(config: Config) -> TextModel:
    """Load the model behind the API at `answer.api.url`, if that is set, else the one that `answer.model` names.

    Raises ModelError, and ConfigError if the server cannot be used.
    """
    # imported here: a process with a model behind an API has no torch, and others have no httpx2
    if config.answer.api.url is not None:
        from stream.answer.api.text import load_api_text

        return load_api_text(config)
    from stream.answer.qwen_text import load_qwen_text

    return load_qwen_text(config)
