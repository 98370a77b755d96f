"""Allocator weights that come with a model: in its folder, checked against its weights, and as bytes that travel."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from arr_coc.errors import ModelError
from arr_coc.layer import CONFIG_FILE, ARRCOCLayer
from arr_coc.qwen.hub import ALLOCATOR_FOLDER
from arr_coc.relevance import RelevanceRealiser

_QUERY_WEIGHT = "participation.asked.question.words.weight"

log = logging.getLogger(__name__)


def fingerprint(embeddings: torch.Tensor) -> str:
    """Names a model's weights by its input embeddings [vocabulary, D], which every training moves.

    They are compared as bfloat16, so that a checkpoint loaded in float32 has the same name.
    """
    rows = embeddings.detach().to("cpu", torch.bfloat16).contiguous()
    return f"sha256:{hashlib.sha256(rows.view(torch.int16).numpy().tobytes()).hexdigest()[:16]}"


def bundled_realiser(folder: Path, embeddings: torch.Tensor, model_id: str) -> RelevanceRealiser | None:
    """The trained allocator in a model's folder; None where there is none, or it was trained for other weights.

    `embeddings` are the model's, [vocabulary, D]; questions that `model_id` embeds are given to what is returned.
    Raises ModelError where the files do not fit the code.
    """
    own = folder / ALLOCATOR_FOLDER
    if not (own / CONFIG_FILE).is_file():
        return None
    layer = ARRCOCLayer.from_pretrained(own)
    if layer.config.trained_for != fingerprint(embeddings):
        log.warning(
            "the allocator's weights in %s are not for these weights of %s and are left out; train them again with "
            "`python -m training.allocator`",
            own,
            model_id,
        )
        return None
    layer.realiser.trained_for = model_id
    return layer.realiser.eval().requires_grad_(False)


def pack_realiser(realiser: RelevanceRealiser | None) -> bytes:
    """Weights as bytes, safetensors' format; nothing for None."""
    return b"" if realiser is None else save({name: rows.contiguous() for name, rows in realiser.state_dict().items()})


def unpack_realiser(data: bytes, model_id: str) -> RelevanceRealiser | None:
    """What `pack_realiser` made, for questions that `model_id` embeds. Raises ModelError where it does not fit."""
    if not data:
        return None
    try:
        weights = load(data)
        realiser = RelevanceRealiser(weights[_QUERY_WEIGHT].shape[1], model_id)
        realiser.load_state_dict(weights)
    except (SafetensorError, KeyError, IndexError, RuntimeError) as error:
        raise ModelError(
            f"the allocator's weights that came with {model_id} cannot be used; install the same version at both ends"
        ) from error
    return realiser.eval().requires_grad_(False)
