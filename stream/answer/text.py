"""Loading of a model that is asked for text about text: of an extension, or a Qwen model of this program."""

from __future__ import annotations

from stream.answer.text_model import TextModel
from stream.config import Config
from stream.extension.registry import model_type_of


def load_text_model(config: Config) -> TextModel:
    """Load the model of an extension, if the configuration names one, else the one that `answer.model` names.

    Raises ModelError, and ConfigError if the model's server cannot be used.
    """
    model_type = model_type_of(config)
    if model_type is not None:
        return model_type.load_text_model(config)
    from stream.answer.qwen_text import load_qwen_text  # loads torch, which other models do without

    return load_qwen_text(config)
