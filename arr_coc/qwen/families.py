"""Model families: what differs between the architectures that are read, in one table (imports no torch).

A family is a row of `FAMILIES`. The encoder, the decoder, the cache and the estimates of memory and operations ask the
row, and never a name. CONTRIBUTING.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arr_coc.errors import ModelError

CHUNK = 64
"""Tokens that a Gated DeltaNet layer reads at once. Inside a chunk each is multiplied with the others' keys twice, and
with their values; two triangular systems of half as many products are solved."""


SUPERSEDED_KEPT = 2
"""So many times the tokens that a group of pictures shows are in the cache, if superseded ones cannot leave it. A group
ends once more of its tokens were superseded than it shows (`arr_coc.allocation.group.REPLACED`)."""

STATES = 4
"""States of each recurrent layer that a prompt has: the one that goes on, and copies after the system prompt, after an
overview, and after a frame or a memory."""


@dataclass(frozen=True, slots=True)
class DecoderLayers:
    """Layers of a decoder: the numbers of those that attend, which keep keys and values of every token, and of those
    that are recurrent, which keep a state of one size, of `state_values` numbers for the convolution and of
    `memory_values` in float32. For each token that is read with others, so many `chunk_products` are made in such a
    layer beside those with its memory."""

    attending: tuple[int, ...]
    recurrent: tuple[int, ...] = ()
    state_values: int = 0
    memory_values: int = 0
    chunk_products: int = 0

    def state_bytes(self, size: int) -> int:
        """Return the bytes of the states of a prompt, in a dtype of `size` bytes."""
        return STATES * len(self.recurrent) * (self.state_values * size + self.memory_values * 4)


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """One architecture: its `model_type` in `config.json` and its name for people.

    Preprocessing that is published with its weights: `mean` and `std` by channel, least and most pixels of a picture.

    Vision tower: `position_grid`: learned positions are added to the patches. `windowed`: some blocks attend inside
    windows. `deepstack`: the first layers of the decoder take rows of inner blocks.

    Decoder: `query_norm`: queries and keys are normalised by head. `gated`: the query projection gives a gate of the
    attention's output beside each query. `recurrent`: only some layers attend (Gated DeltaNet, arXiv:2412.06464, in the
    others).

    `unread`: beginnings of the names of weights that answering needs none of.
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
    unread: tuple[str, ...] = ()

    def decoder_layers(self, text: Mapping[str, Any]) -> DecoderLayers:
        """Return the decoder's layers by the `text_config` of a model. Raises KeyError, TypeError or ValueError if that
        lacks a number."""
        count = int(text["num_hidden_layers"])
        if not self.recurrent:
            return DecoderLayers(tuple(range(count)))
        every = int(text.get("full_attention_interval") or 4)
        kinds = text.get("layer_types") or [
            "linear_attention" if (number + 1) % every else "full_attention" for number in range(count)
        ]
        attending = tuple(number for number, kind in enumerate(kinds[:count]) if kind == "full_attention")
        if not attending:
            raise ValueError("layer_types without full_attention")
        keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
        heads, head_dim = int(text["linear_num_value_heads"]), int(text["linear_value_head_dim"])
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
"""What both Qwen2-VL families have in common: CLIP's statistics, 4 to 16384 visual tokens."""

_QWEN3_5: dict[str, Any] = {"deepstack": False, "gated": True, "recurrent": True, "unread": ("mtp.",)}

FAMILIES = {
    family.model_type: family
    for family in (
        ModelFamily("qwen3_5", "Qwen3.5", **_QWEN3_5),
        ModelFamily("qwen3_5_moe", "Qwen3.5-MoE", **_QWEN3_5),
        ModelFamily("qwen3_vl", "Qwen3-VL"),
        ModelFamily("qwen3_vl_moe", "Qwen3-VL-MoE"),
        ModelFamily("qwen2_5_vl", "Qwen2.5-VL", windowed=True, **_QWEN2),
        ModelFamily("qwen2_vl", "Qwen2-VL", **_QWEN2),
    )
}
"""By `model_type`. Qwen3.6 and 3.8 call themselves qwen3_5 and qwen3_5_moe, too."""

TOWER_FAMILIES = FAMILIES | {f"{model_type}_vision": family for model_type, family in FAMILIES.items()}
"""By the `model_type` of a stock vision tower; in older versions of transformers it is the model's."""


def family_of(model_type: object, name: str) -> ModelFamily:
    """The family with this `model_type`. Raises ModelError that names what was found in the model `name`."""
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        found = f"is a model of type {model_type!r}" if model_type else "names no model_type in its config.json"
        supported = ", ".join(f"{family.title} ({family.model_type})" for family in FAMILIES.values())
        raise ModelError(
            f"{name} {found}, which is not supported",
            f"give a model of one of these types: {supported}; or have vLLM, llama.cpp or Ollama serve it (--api)",
        )
    return family
