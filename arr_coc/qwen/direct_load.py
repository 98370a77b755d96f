"""Load of a small model without torch's meta device, which would import the compiler's mathematics first.

`from_pretrained` builds a model without memory and then fills it. That suits gigabytes of weights; for a small model
the import takes several times as long as reading the weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from arr_coc.qwen.checkpoint_decoding import GENERATION_FILE
from arr_coc.qwen.convert_dtype import MappedWeights
from arr_coc.qwen.weight_files import weight_files

TIED = "lm_head.weight"
"""Weight that a checkpoint may leave out, because it is tied to the embeddings."""

KNOWN_ATTENTION = ("eager", "sdpa")
"""Implementations of attention that a folder may choose. transformers downloads others as code from the hub."""


def read_transformers_config(folder: Path) -> Any:
    """Read the folder's configuration for transformers, without names of code to fetch."""
    from transformers.models.auto.configuration_auto import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    implementation = config._attn_implementation
    if implementation in KNOWN_ATTENTION:
        config._attn_implementation = implementation
    else:
        config._attn_implementation = None
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = None
    return config


def load_directly(folder: Path, name: str, dtype: torch.dtype) -> Any | None:
    """Build a folder's model on the CPU with its weights, in this dtype.

    Returns None if the weights do not match the model in names and shapes, are quantised, or have an output of their
    own although the configuration ties it to the embeddings; `from_pretrained` converts such weights, decides which
    output counts, or reports the error.
    """
    config = read_transformers_config(folder)
    if getattr(config, "quantization_config", None) is not None:
        return None
    model = empty_model(folder, config, dtype)
    weights = {key: value for path in weight_files(folder, name) for key, value in load_file(path).items()}
    if not _fit(model, weights):
        return None
    mapped = MappedWeights()
    for key, weight in weights.items():
        if weight.dtype != dtype:
            weights[key] = mapped.convert(weight, dtype)
    model.load_state_dict(weights, strict=False, assign=True)
    untied = model.lm_head.weight
    model.tie_weights()
    # transformers keeps an output that differs, up to version 4 it drops it; tying here would choose for it.
    if TIED in weights and not torch.equal(model.lm_head.weight, untied):
        return None
    if TIED not in weights and model.lm_head.weight is not model.get_input_embeddings().weight:
        return None
    return model


def empty_model(folder: Path, config: Any, dtype: torch.dtype) -> Any:
    """Build a folder's model on the CPU. Its weights are memory that was not written, so that none is taken yet."""
    from transformers.generation.configuration_utils import GenerationConfig
    from transformers.initialization import no_init_weights
    from transformers.models.auto.modeling_auto import AutoModelForImageTextToText

    with no_init_weights():
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype, trust_remote_code=False)
    if (folder / GENERATION_FILE).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model


def _fit(model: Any, weights: dict[str, torch.Tensor]) -> bool:
    """Return True if these are all the model's weights; a tied output may be missing."""
    expected = {key: value.shape for key, value in model.state_dict().items()}
    shapes = {key: value.shape for key, value in weights.items()}
    return expected in (shapes, {TIED: expected.get(TIED)} | shapes) and all(
        value.is_floating_point() for value in weights.values()
    )
