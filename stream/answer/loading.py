"""Name and loading of the model that a configuration names: of an extension, or a Qwen model of this program."""

from __future__ import annotations

from arr_coc.hub import allocator_folder, bundled_model_path, local_folder
from arr_coc.qwen.checkpoint import check_folder
from stream.answer.model import AnswerModel
from stream.config import Config
from stream.extension.registry import first_part, model_type_of


def load_configured_model(config: Config) -> AnswerModel:
    """Load the model of an extension, if the configuration names one, else `load_qwen_model`'s; an extension may put
    its own around it."""
    model_type = model_type_of(config)
    if model_type is not None:
        model = model_type.load_model(config)
    else:
        from stream.answer.qwen import load_qwen_model  # loads torch, which other models do without

        model = load_qwen_model(config)
    return first_part("answer_model", config, model) or model


def model_name(config: Config) -> str:
    """Return the model's name, as shown to users.

    Raises ModelNotFound or ModelError if its folder, or that of the named allocator, is unusable, and ConfigError if
    the model is on a server that cannot be used.
    """
    name = config.answer.model
    model_type = model_type_of(config)
    if model_type is not None:
        return model_type.name_of(config)
    if config.answer.allocator is not None:
        allocator_folder(config.answer.allocator)
    folder = bundled_model_path() if name is None else local_folder(name)
    if folder is None:
        return str(name)
    check_folder(folder, str(folder))
    return folder.name
