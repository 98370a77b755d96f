"""Model families: the differences between the supported architectures, in one table (imports no torch).

A family is a row of `FAMILIES`. The encoder, the decoder, the cache and the estimates of memory and operations read the
row, never the family's name. CONTRIBUTING.md shows how to add one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

from arr_coc.errors import ModelError

CHUNK = 64
"""Tokens that a Gated DeltaNet layer reads at once. Inside a chunk each is multiplied with the others' keys twice and
with their values once; two triangular systems with half as many products are solved."""

NEWEST_STATES = 2
"""Number of newest marks of a cache at which it keeps a copy of the states, such as an overview and its frame."""

STATES = 2 + NEWEST_STATES
"""Most states that a prompt keeps for each recurrent layer: the current one, and copies after the system prompt and at
the newest marks."""


RECURRENT_TRANSFORMERS = (5, 21)
"""First version of transformers whose recurrent layers read their states by methods of the cache."""


@dataclass(frozen=True, slots=True)
class DecoderLayers:
    """Layers of a decoder. `attending`: indices of attention layers, which keep keys and values of every token.
    `recurrent`: indices of recurrent layers, which keep a state of constant size: `state_values` numbers for the
    convolution and `memory_values` in float32. `chunk_products`: products of each token inside a chunk in such a layer,
    in addition to those with its state."""

    attending: tuple[int, ...]
    recurrent: tuple[int, ...] = ()
    state_values: int = 0
    memory_values: int = 0
    chunk_products: int = 0

    def state_bytes(self, size: int) -> int:
        """Return the bytes of a prompt's states, in a dtype of `size` bytes."""
        return STATES * len(self.recurrent) * (self.state_values * size + self.memory_values * 4)


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """One architecture: its `model_type` in `config.json` and its `title`.

    Preprocessing that is published with its weights: `mean` and `std` by channel, least and most pixels of a picture.

    Vision tower: `position_grid`: learned positions are added to the patches. `windowed`: some blocks attend inside
    windows. `deepstack`: the first layers of the decoder add outputs of inner blocks.

    Decoder: `query_norm`: queries and keys are normalised by head. `gated`: the query projection also returns a gate of
    the attention's output. `recurrent`: only some layers attend; the others are Gated DeltaNet (arXiv:2412.06464).

    `ignored_prefixes`: prefixes of weights that answering does not use.

    `coordinates` of places in answers: thousandths of the picture's sides, or pixels of the picture that the model was
    given.
    """

    model_type: str
    title: str
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    min_px: int = 256 * 256
    max_px: int = 4096 * 4096
    position_grid: bool = True
    windowed: bool = False
    deepstack: bool = True
    query_norm: bool = True
    gated: bool = False
    recurrent: bool = False
    ignored_prefixes: tuple[str, ...] = ()
    coordinates: Literal["thousandths", "pixels"] = "thousandths"

    def decoder_layers(self, text: Mapping[str, Any]) -> DecoderLayers:
        """Return the decoder's layers from a model's `text_config`. Raises KeyError, TypeError or ValueError if that
        lacks a number."""
        count = int(text["num_hidden_layers"])
        if not self.recurrent:
            return DecoderLayers(tuple(range(count)))
        interval = int(text.get("full_attention_interval") or 4)
        kinds = text.get("layer_types") or [
            "linear_attention" if (number + 1) % interval else "full_attention" for number in range(count)
        ]
        attending = tuple(number for number, kind in enumerate(kinds[:count]) if kind == "full_attention")
        if not attending:
            raise ValueError("layer_types without full_attention")
        keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
        heads = int(text["linear_num_value_heads"])
        head_dim = int(text["linear_value_head_dim"])
        return DecoderLayers(
            attending=attending,
            recurrent=tuple(number for number in range(count) if number not in attending),
            state_values=(2 * keys + heads * head_dim) * int(text["linear_conv_kernel_dim"]),
            memory_values=heads * head_dim * int(text["linear_key_head_dim"]),
            chunk_products=CHUNK * heads * (5 * int(text["linear_key_head_dim"]) + 3 * head_dim) // 2,
        )


_QWEN2: dict[str, Any] = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
    "min_px": 56 * 56,
    "max_px": 16384 * 28 * 28,
    "position_grid": False,
    "deepstack": False,
    "query_norm": False,
}
"""Common to both Qwen2-VL families: CLIP's statistics, 4 to 16384 visual tokens."""

_QWEN3_5: dict[str, Any] = {"deepstack": False, "gated": True, "recurrent": True, "ignored_prefixes": ("mtp.",)}

FAMILIES = {
    family.model_type: family
    for family in (
        ModelFamily("qwen3_5", "Qwen3.5", **_QWEN3_5),
        ModelFamily("qwen3_5_moe", "Qwen3.5-MoE", **_QWEN3_5),
        ModelFamily("qwen3_vl", "Qwen3-VL"),
        ModelFamily("qwen3_vl_moe", "Qwen3-VL-MoE"),
        ModelFamily("qwen2_5_vl", "Qwen2.5-VL", windowed=True, coordinates="pixels", **_QWEN2),
        ModelFamily("qwen2_vl", "Qwen2-VL", **_QWEN2),
    )
}
"""Families by `model_type`. Qwen3.6 and 3.8 also have the types qwen3_5 and qwen3_5_moe."""

TOWER_FAMILIES = FAMILIES | {f"{model_type}_vision": family for model_type, family in FAMILIES.items()}
"""Families by the `model_type` of a stock vision tower; in older versions of transformers that is the model's."""


def family_by_name(name: str) -> ModelFamily:
    """Return the family that a model's name speaks of, such as `qwen2.5vl:7b` or `Qwen/Qwen2.5-VL-7B-Instruct`; that of
    Qwen3-VL for any other name."""
    letters = "".join(filter(str.isalnum, name.lower()))
    kinds = {"qwen25vl": "qwen2_5_vl", "qwen2vl": "qwen2_vl"}
    return FAMILIES[next((kind for part, kind in kinds.items() if part in letters), "qwen3_vl")]


def family_of(model_type: object, name: str) -> ModelFamily:
    """Return the family with this `model_type`. Raises ModelError, with the model's `name`, if it is not supported."""
    if isinstance(model_type, str):
        family = FAMILIES.get(model_type)
    else:
        family = None
    if family is None:
        if model_type:
            problem = f"is a model of type {model_type!r}"
        else:
            problem = "names no model_type in its config.json"
        supported = ", ".join(f"{family.title} ({family.model_type})" for family in FAMILIES.values())
        raise ModelError(
            f"{name} {problem}, which is not supported",
            f"give a model of one of these types: {supported}; or have vLLM, llama.cpp or Ollama serve it (--api)",
        )
    return family


def check_transformers(family: ModelFamily, name: str) -> None:
    """Raise ModelError if the family of the model `name` has recurrent layers, and the installed transformers is older
    than RECURRENT_TRANSFORMERS."""
    installed = version("transformers")
    if family.recurrent and tuple(map(int, re.findall(r"\d+", installed)[:2])) < RECURRENT_TRANSFORMERS:
        minimum = ".".join(map(str, RECURRENT_TRANSFORMERS))
        raise ModelError(
            f"{name} is a {family.title} model, which needs transformers {minimum} or newer, and {installed} is "
            "installed",
            "pip install --upgrade transformers",
        )
