"""Text model behind an OpenAI-compatible API: one request for each prompt."""

from __future__ import annotations

import time

from stream.answer.model import without_thoughts
from stream.answer.text_model import STATEMENT_TOKENS
from stream.config import Config
from stream.errors import AnswerLost
from stream.extensions.api.model import CHARS_A_TOKEN_MAX, Served, connect_server
from stream.extensions.api.thoughts import ThoughtFilter

PROMPT_TOKENS = 4096
"""Longest prompt: the API does not report a model's context, and servers with less are rare."""

BYTES_A_TOKEN = 3
"""Bytes of UTF-8 for one token, fewer than tokenizers take of any language."""

ATTEMPTS = 3


class ApiTextModel:
    """Model on a server. A lost answer is asked for again, ATTEMPTS times in all."""

    known_world: str | None = None
    prompt_tokens = PROMPT_TOKENS

    def __init__(self, config: Config, served_model: Served) -> None:
        self._answer = config.answer
        self._connection = served_model.connection
        self.name = served_model.name

    def count_tokens(self, text: str) -> int:
        """Return an estimate of the number of tokens of a text, rather too many."""
        return -(-len(text.encode("utf-8", "replace")) // BYTES_A_TOKEN)

    def complete(self, prompt: str) -> str:
        """Return the answer to a prompt. Raises AnswerLost, ModelError and ConfigError."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._complete_once(prompt)
            except AnswerLost as error:
                if attempt == ATTEMPTS:
                    raise
                time.sleep(error.wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _complete_once(self, prompt: str) -> str:
        system = self._answer.system
        body = {
            "model": self.name,
            "messages": [
                *([{"role": "system", "content": system}] if system else []),
                {"role": "user", "content": prompt},
            ],
            "max_tokens": STATEMENT_TOKENS,
            "temperature": self._answer.temperature,
        }
        stream = self._connection.stream(body)
        text = ""
        try:
            while not stream.ended:
                piece = stream.take()
                text += "" if piece is None else piece.text
                if len(text) > STATEMENT_TOKENS * CHARS_A_TOKEN_MAX:
                    raise self._connection.note_loss("an answer without an end")
        finally:
            stream.cancel()
        return ThoughtFilter().push(without_thoughts(text))


def load_api_text(config: Config) -> ApiTextModel:
    """Return the model that `api.url` serves. Raises the errors of `connect_server`."""
    return ApiTextModel(config, connect_server(config))
