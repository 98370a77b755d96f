"""Weights of an allocator: for a model's embeddings, in its folder, and as bytes for another process."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from arr_coc.errors import ModelError
from arr_coc.hub import ALLOCATOR_FOLDER
from arr_coc.layer import CONFIG_FILE, ARRCOCConfig, ARRCOCLayer
from arr_coc.relevance.balancing import RelevanceRealiser

log = logging.getLogger(__name__)


def new_layer(embeddings: torch.Tensor, **options: Any) -> ARRCOCLayer:
    """Return an untrained layer for the questions of a model, which has these input embeddings [vocabulary, D].

    `options`: the other fields of `ARRCOCConfig`. Its weights are random, by torch's own generator. Raises as
    `ARRCOCLayer`.
    """
    config = ARRCOCConfig(query_dim=embeddings.shape[1], trained_for=fingerprint(embeddings), **options)
    layer = ARRCOCLayer(config)
    with torch.no_grad():
        # the question leads from the start; else information and perspective learn first, and silence it
        layer.realiser.balancer.out.bias.copy_(torch.tensor((-3.0, -3.0, 3.0)))
    return layer


def fingerprint(embeddings: torch.Tensor) -> str:
    """Names a model's weights by its input embeddings [vocabulary, D], which every training moves.

    They are compared as bfloat16, so that a checkpoint loaded in float32 has the same name.
    """
    rows = embeddings.detach().to("cpu", torch.bfloat16).contiguous()
    return f"sha256:{hashlib.sha256(rows.view(torch.int16).numpy().tobytes()).hexdigest()[:16]}"


def load_bundled_layer(folder: Path, embeddings: torch.Tensor, model_id: str) -> ARRCOCLayer | None:
    """Load the trained allocator in a model's folder.

    Args:
        folder: The model's folder.
        embeddings: The model's, [vocabulary, D].
        model_id: Identity of the model whose embeddings of questions the layer is given.

    Returns:
        The layer; None if there is none, or it was trained for other weights.

    Raises:
        ModelError: Files that do not fit the code.
    """
    allocator_folder = folder / ALLOCATOR_FOLDER
    if not (allocator_folder / CONFIG_FILE).is_file():
        return None
    layer = ARRCOCLayer.from_pretrained(allocator_folder)
    if layer.config.trained_for != fingerprint(embeddings):
        log.warning(
            "the allocator's weights in %s are not for these weights of %s and are left out; make others with `adapt`",
            allocator_folder,
            model_id,
        )
        return None
    return _ready(layer, model_id)


def load_layer(name: str | Path, embeddings: torch.Tensor, model_id: str) -> ARRCOCLayer:
    """Load a trained allocator for a model.

    Args:
        name: Folder, or name on the hub (`owner/model`).
        embeddings: The model's, [vocabulary, D].
        model_id: Identity of the model whose embeddings of questions the layer is given.

    Raises:
        ModelNotFound: No such folder or name.
        ModelError: Files that do not fit the code, or an allocator that was made for other weights.
    """
    layer = ARRCOCLayer.from_pretrained(name)
    if layer.config.trained_for != fingerprint(embeddings):
        raise ModelError(
            f"the allocator in {name} was made for another model than {model_id}, or for other weights of it",
            "make one for this model with `adapt`, or leave it out",
        )
    return _ready(layer, model_id)


def _ready(layer: ARRCOCLayer, model_id: str) -> ARRCOCLayer:
    layer.realiser.trained_for = model_id
    return layer.eval().requires_grad_(False)


def serialize_realiser(realiser: RelevanceRealiser | None) -> bytes:
    """Return the weights as bytes, safetensors' format, with their origin as its metadata; nothing for None.

    Equal weights give equal bytes, in any process.
    """
    if realiser is None:
        return b""
    weights = {name: rows.contiguous() for name, rows in realiser.state_dict().items()}
    # safetensors writes metadata in any order; its keys are sorted here
    data = save(weights, {"scorer": realiser.scorer, "channels": realiser.channels})
    header = _header(data)
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    length = int.from_bytes(data[:8], "little")
    return data[:8] + text.ljust(length) + data[8 + length :]


def deserialize_realiser(data: bytes, model_id: str) -> RelevanceRealiser | None:
    """Load the bytes of `serialize_realiser`, for questions that `model_id` embeds. Raises ModelError if it does
    not fit."""
    if not data:
        return None
    try:
        weights = load(data)
        metadata = _header(data)["__metadata__"]
        query_dim = weights["balancer.query.weight"].shape[1]
        realiser = RelevanceRealiser(query_dim, model_id, metadata["scorer"], metadata["channels"])
        realiser.load_state_dict(weights)
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"the allocator's weights that came with {model_id} cannot be used; install the same version at both ends"
        ) from error
    return realiser.eval().requires_grad_(False)


def _header(data: bytes) -> dict[str, Any]:
    """Read the header of bytes of safetensors: it is JSON, padded with spaces, and its length comes first."""
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    return header
