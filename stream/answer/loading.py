"""Loading of the model that a configuration names: one of this machine, or one that a server answers for."""

from __future__ import annotations

from stream.answer.model import AnswerModel, load_qwen_model
from stream.config import Config


def load_configured_model(config: Config) -> AnswerModel:
    """Load the model that a server answers for, where `answer.api.url` names one, else `load_qwen_model`'s; with
    several `answer.slots` one that answers several clients at once."""
    if config.answer.api.url is None and config.answer.slots > 1:
        from stream.answer.batching.model import load_batch_model

        return load_batch_model(config)
    if config.answer.api.url is None:
        return load_qwen_model(config)
    if config.answer.slots > 1:
        from stream.answer.api.parallel import load_api_batch_model

        return load_api_batch_model(config)
    from stream.answer.api.model import load_api_model

    return load_api_model(config)
