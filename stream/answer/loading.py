"""Loading of the model that a configuration names: on this machine, or behind an API."""

from __future__ import annotations

from stream.answer.model import AnswerModel
from stream.config import Config


def load_configured_model(config: Config) -> AnswerModel:
    """Load the model behind the API at `answer.api.url`, if that is set, else `load_qwen_model`'s."""
    # Imported here: a process with a model behind an API has no torch, and others have no httpx2.
    if config.answer.api.url is not None:
        from stream.answer.api.model import load_api_model

        return load_api_model(config)
    from stream.answer.qwen import load_qwen_model

    return load_qwen_model(config)
