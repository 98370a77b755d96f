"""Tokens through the layers of the decoder, without the stock forward.

`layer_steps` builds no mask, computes no positions and runs no hooks. Its products are those of the stock model, in
the same order, so the logits are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from arr_coc.qwen.cpu_precision import has_amx
from arr_coc.qwen.families import ModelFamily
from arr_coc.qwen.qwenvl import QwenVL, rotate_native
from arr_coc.types import Steps

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Attention of a layer (its number) over the queries [N, heads, head_dim], keys and values [N, kv heads, head_dim] of N
tokens, queries and keys rotated. Returns N * heads * head_dim numbers in this order, in any shape."""

Recur = Callable[[int, Any, torch.Tensor], torch.Tensor]
"""Output [N, D] of a recurrent layer (its number, and the stock module) for the rows [N, D] of N tokens."""


@dataclass(frozen=True, slots=True)
class DeepstackRows:
    """Rows that the first layers add to visual tokens: `visual` bool [N] marks the K visual ones of N tokens, `levels`
    holds their rows [K, D], one tensor a layer."""

    visual: torch.Tensor
    levels: Sequence[torch.Tensor] = ()


def layer_steps(
    qwen: QwenVL,
    embeds: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    attend: Attend,
    recur: Recur | None = None,
    deepstack: DeepstackRows | None = None,
) -> Steps[torch.Tensor]:
    """Run tokens through all layers of the decoder, one layer a step.

    Args:
        qwen: The model.
        embeds: Embeddings of N tokens, [N, D].
        cos: Cosines of their positions, [head_dim] or [N, 1, head_dim], in the dtype of `embeds`.
        sin: Sines of their positions, likewise.
        attend: Attention of a layer.
        recur: Output of a recurrent layer; None for a family without such layers.
        deepstack: Rows that the first layers add to visual tokens, if any.

    Returns:
        Hidden states before the final norm, [N, D].
    """
    hidden = embeds
    family = qwen.family
    attentions = qwen.attentions
    for index, layer in enumerate(qwen.language_model.layers):
        entering = layer.input_layernorm(hidden)
        attention = attentions.get(index)
        if attention is None:
            assert recur is not None, f"layer {index} is recurrent"
            hidden = hidden + recur(index, layer.linear_attn, entering)
        else:
            query, gate = projected_query(family, attention, entering)
            key, value = (
                linear_rows(product, entering).view(len(hidden), -1, attention.head_dim)
                for product in (attention.k_proj, attention.v_proj)
            )
            if family.query_norm:
                key = attention.k_norm(key)
            mixed = attend(index, rotate_native(query, cos, sin), rotate_native(key, cos, sin), value)
            mixed = mixed.reshape(len(hidden), -1)
            if gate is not None:
                mixed = mixed * gate.reshape(len(hidden), -1).sigmoid()
            hidden = hidden + linear_rows(attention.o_proj, mixed)
        hidden = hidden + _mlp_of_rows(layer.mlp, layer.post_attention_layernorm(hidden))
        if deepstack is not None and index < len(deepstack.levels):
            hidden[deepstack.visual] += deepstack.levels[index].to(hidden)
        yield
    return hidden


def projected_query(
    family: ModelFamily, attention: Any, entering: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the queries of an attention before their rotation.

    Args:
        family: The model's family.
        attention: The stock attention module.
        entering: Normalised hidden states of N tokens, [N, D].

    Returns:
        The queries [N, heads, head_dim], and the gates of the attention's output in the same shape; None for a family
        without gates.
    """
    query = linear_rows(attention.q_proj, entering)
    gate = None
    if family.gated:
        query, gate = query.view(len(entering), -1, 2 * attention.head_dim).chunk(2, dim=-1)
    query = query.reshape(len(entering), -1, attention.head_dim)
    return attention.q_norm(query) if family.query_norm else query, gate


def logits_of(qwen: QwenVL, hidden: torch.Tensor) -> torch.Tensor:
    """Return the logits [N, vocabulary] of hidden states [N, D] from `layer_steps`."""
    return linear_rows(qwen.model.lm_head, qwen.language_model.norm(hidden))


def linear_rows(linear: Any, rows: torch.Tensor) -> torch.Tensor:
    """Apply `linear` to rows [N, D]. One row in bfloat16 on a CPU with AMX is computed as matrix times vector, which
    reads weights at memory speed, while a product of matrices first rearranges them in tiles. Without AMX the product
    of matrices is faster."""
    single = len(rows) == 1 and rows.dtype == torch.bfloat16 and rows.device.type == "cpu"
    if not (single and type(linear) is nn.Linear and has_amx()) or linear.bias is not None:
        product: torch.Tensor = linear(rows)
        return product
    return torch.mv(linear.weight, rows[0])[None]


def _mlp_of_rows(mlp: Any, rows: torch.Tensor) -> torch.Tensor:
    if not hasattr(mlp, "gate_proj"):  # a mixture of experts, which needs the batch axis
        mixed: torch.Tensor = mlp(rows[None])[0]
        return mixed
    return linear_rows(mlp.down_proj, mlp.act_fn(linear_rows(mlp.gate_proj, rows)) * linear_rows(mlp.up_proj, rows))
