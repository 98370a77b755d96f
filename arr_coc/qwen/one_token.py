"""One token through the decoder: the stock model's own modules, called without what surrounds them for many tokens.

No mask is made, no position is worked out and no hook runs. The products are the stock model's, in its order, so the
logits are too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from arr_coc.qwen.positions import text_positions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.rotation import rotation, turned

_TABLE_TOKENS = 64
"""How many rotations are made at once."""

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""What a layer (its number) makes of one token's query [heads, head_dim], key and value [kv heads, head_dim], all
rotated: heads * head_dim numbers, in any shape."""

Watch = Callable[[int, torch.Tensor, torch.Tensor], None]
"""Is told of each layer (its number) the rotated query [heads, head_dim] and the keys [kv heads, L, head_dim]."""


def through_layers(
    qwen: QwenVL, embeds: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend
) -> torch.Tensor:
    """The logits [vocabulary] after one token: `embeds` [1, D]; `cos`, `sin` [head_dim] rotate to its place."""
    hidden = embeds
    for index, layer in enumerate(qwen.language_model.layers):
        attention = layer.self_attn
        entering = layer.input_layernorm(hidden)
        query = attention.q_proj(entering).view(-1, attention.head_dim)
        key = attention.k_proj(entering).view(-1, attention.head_dim)
        value = attention.v_proj(entering).view(-1, attention.head_dim)
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm(query), attention.k_norm(key)
        mixed = attend(index, turned(query, cos, sin), turned(key, cos, sin), value)
        hidden = hidden + attention.o_proj(mixed.reshape(1, -1))
        # A mixture of experts wants the batch axis.
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden)[None])[0]
    logits: torch.Tensor = qwen.model.lm_head(qwen.language_model.norm(hidden))[0]
    return logits


class OneToken:
    """Adds the tokens of one answer to a cache, one after the other, from a text position on."""

    def __init__(self, qwen: QwenVL, position: int, kv: Any, watch: Watch | None = None) -> None:
        self._qwen = qwen
        self._kv = kv
        self._watch = watch
        self._position = position
        self._tokens = 0
        self._rotations: Iterator[tuple[torch.Tensor, torch.Tensor]] = iter(())

    @torch.inference_mode()
    def __call__(self, token: torch.Tensor) -> torch.Tensor:
        """The logits [vocabulary] after the next token (int64 scalar)."""
        if self._tokens % _TABLE_TOKENS == 0:
            self._rotations = zip(*rotations(self._qwen, self._position + self._tokens, _TABLE_TOKENS), strict=True)
        self._tokens += 1
        embeds = self._qwen.language_model.embed_tokens(token.view(1))
        return through_layers(self._qwen, embeds, *next(self._rotations), self._attend)

    def _attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys, values = self._kv.update(key[None, :, None], value[None, :, None], layer)
        if self._watch is not None:
            self._watch(layer, query, keys[0])
        grouped = query.view(1, len(key), -1, query.shape[-1])  # those that share keys as rows: nothing is repeated
        return F.scaled_dot_product_attention(grouped, keys, values)


def rotations(qwen: QwenVL, position: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [count, head_dim] of text positions from `position` on, in the model's dtype."""
    cos, sin = rotation(qwen, text_positions(position, count))
    dtype = qwen.language_model.embed_tokens.weight.dtype
    return cos.to(dtype), sin.to(dtype)
