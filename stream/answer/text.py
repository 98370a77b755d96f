"""Loading of a model that is asked for text about text: on this machine, or behind an API."""

from __future__ import annotations

from stream.answer.text_model import TextModel
from stream.config import Config


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
