"""A prefill that drops visual tokens on its way through the language model's layers.

The stock decoder layers are called one by one. Which tokens go on is decided by the attention that the prompt's last
token pays them in the layer before the cut, averaged over heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc.qwen.attention import attention_weights, last_query
from arr_coc.qwen.decode import PromptPart
from arr_coc.qwen.kv_cache import PrefixCache
from arr_coc.qwen.qwenvl import QwenVL


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`logits` [vocabulary] of what follows; `kv` with `lengths[i]` tokens in layer i; `kept` int64: which of the
    prompt's tokens went through the last layer."""

    logits: torch.Tensor
    kv: Any
    lengths: tuple[int, ...]
    kept: torch.Tensor


@dataclass(slots=True)
class _Rows:
    """What travels through the layers: one row for each token that is still there."""

    hidden: torch.Tensor
    rotary: tuple[torch.Tensor, torch.Tensor]
    visual: torch.Tensor
    deepstack: list[torch.Tensor]
    index: torch.Tensor

    def keep(self, rows: torch.Tensor) -> None:
        cos, sin = self.rotary
        self.hidden = self.hidden[:, rows]
        self.rotary = cos[..., rows, :], sin[..., rows, :]
        self.visual, self.index = self.visual[rows], self.index[rows]
        self.deepstack = [added[rows] for added in self.deepstack]


@torch.inference_mode()
def staged_prefill(qwen: QwenVL, part: PromptPart, places: Sequence[slice], keep: Mapping[int, int]) -> Prefilled:
    """Prefills a whole prompt into an empty cache; only `keep[i]` visual tokens go into layer i and those after it.

    `places`: where the visual tokens stand. With an empty `keep` this is the stock model's prefill.
    """
    rows = _rows(qwen, part, places)
    kv = PrefixCache[None]().kv
    lengths = []
    attention = torch.zeros(0)
    for index, layer in enumerate(qwen.language_model.layers):
        if index in keep:
            rows.keep(_strongest(attention, rows.visual, keep[index]))
        entering = rows.hidden
        made = layer(entering, attention_mask=None, position_embeddings=rows.rotary, past_key_values=kv, use_cache=True)
        rows.hidden = made[0] if isinstance(made, tuple) else made
        if index < len(rows.deepstack):
            rows.hidden = rows.hidden + rows.deepstack[index]
        lengths.append(len(rows.index))
        if index + 1 in keep:
            attention = _last_token_attention(layer, entering, rows.rotary, kv.layers[index].keys[0])
    last = qwen.language_model.norm(rows.hidden[0, -1])
    return Prefilled(qwen.model.lm_head(last), kv, tuple(lengths), rows.index)


def _rows(qwen: QwenVL, part: PromptPart, places: Sequence[slice]) -> _Rows:
    inputs = part.inputs()
    hidden = inputs["inputs_embeds"]
    visual = torch.zeros(hidden.shape[1], dtype=torch.bool, device=hidden.device)
    for place in places:
        visual[place] = True
    deepstack = []
    for added in inputs.get("deepstack_visual_embeds", []):
        spread = torch.zeros_like(hidden[0])
        spread[visual] = added.to(hidden)
        deepstack.append(spread)
    rotary = qwen.language_model.rotary_emb(hidden, inputs["position_ids"])
    return _Rows(hidden, rotary, visual, deepstack, torch.arange(len(visual), device=hidden.device))


def _strongest(attention: torch.Tensor, visual: torch.Tensor, count: int) -> torch.Tensor:
    """Rows of all text and of the `count` visual tokens of highest attention, in order."""
    ranked = torch.where(visual, attention, -torch.inf)
    kept = ~visual
    kept[ranked.topk(min(count, int(visual.sum()))).indices] = True
    return kept.nonzero()[:, 0]


def _last_token_attention(
    layer: Any, entering: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], keys: torch.Tensor
) -> torch.Tensor:
    """Attention of the last token on each of `keys` [kv heads, L, head_dim], mean over heads: float32 [L]."""
    query = last_query(layer.self_attn, layer.input_layernorm(entering[:, -1:]), rotary)
    return attention_weights(query, keys).mean(dim=(0, 1))
