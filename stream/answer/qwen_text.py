"""Qwen model on this machine, asked for text about text, without pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stream.answer.text_model import STATEMENT_TOKENS
from stream.config import Config

if TYPE_CHECKING:
    from arr_coc.model import ARRCOCQwen

TEMPLATE_TOKENS = 64
"""Generous number of tokens of a chat template around one message."""


@dataclass(frozen=True, slots=True)
class QwenTextModel:
    """Model on this machine. Answers have at most STATEMENT_TOKENS."""

    model: ARRCOCQwen

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.qwen.model_id

    @property
    def known_world(self) -> str | None:
        """The only world that the model knows; None for a general one."""
        return self.model.qwen.known_world

    @property
    def prompt_tokens(self) -> int:
        """Most tokens of a prompt."""
        return self.model.qwen.max_context_tokens - STATEMENT_TOKENS - TEMPLATE_TOKENS

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self.model.qwen.plain_token_ids(text))

    def complete(self, prompt: str) -> str:
        """Return the answer to a prompt. Raises ContextLengthError, NonFiniteError."""
        messages = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
        text: str = self.model.generate(messages=messages, max_tokens=STATEMENT_TOKENS, stop_loops=True).text  # type: ignore[arg-type]
        return text


def load_qwen_text(config: Config) -> QwenTextModel:
    """Load the model that `answer.model` names. Raises ModelError."""
    from arr_coc.qwen.deferred_imports import deferred_imports

    answer = config.answer
    with deferred_imports(answer.model):
        from arr_coc.model import ARRCOCQwen

        return QwenTextModel(ARRCOCQwen.from_pretrained(answer.model, device=answer.device, dtype=answer.dtype))
