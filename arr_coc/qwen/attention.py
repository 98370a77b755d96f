"""Attention of the decoder on the visual tokens, taken from the cached keys of a few layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from arr_coc.errors import ModelError, NonFiniteError
from arr_coc.qwen.decode import projected_query
from arr_coc.qwen.families import ModelFamily
from arr_coc.qwen.prompt import PreparedPrompt
from arr_coc.qwen.qwenvl import QwenVL, rotate_native
from arr_coc.relevance.embedding_axes import EmbeddingAxes
from arr_coc.types import Feedback

PROBED_LAYERS = 2
"""How many layers are looked at."""

PROBED_TOKENS = 8
"""How many of an answer's first tokens are looked at, after its thoughts."""


def probed_layers(attending: Sequence[int]) -> Sequence[int]:
    """Return the numbers of the layers that are looked at: of those that attend the middle ones.

    There the decoder finds what is asked about; later layers are about what to say (arXiv:2602.04304 compares layers).
    In the bundled model, too, attention separates asked tiles from others best there (evaluation/README.md).
    """
    first = max(0, (len(attending) - PROBED_LAYERS) // 2)
    return attending[first : first + PROBED_LAYERS]


def glanced_layers(attending: Sequence[int]) -> Sequence[int]:
    """Return the numbers of those that a glance looks at: the upper one of the middle ones, which finds a thing's place
    before its kind (evaluation/README.md)."""
    return probed_layers(attending)[-1:]


def unreadable_layer(qwen: QwenVL) -> int | None:
    """Return the number of a probed layer without a separate query projection; None if all have one."""
    layers = qwen.language_model.layers
    for number in probed_layers(qwen.layers.attending):
        attention = getattr(layers[number], "self_attn", None)
        if not hasattr(attention, "q_proj") or not hasattr(attention, "head_dim"):
            return number
    return None


def check_readable(qwen: QwenVL) -> None:
    """Raise ModelError if the decoder's attention cannot be read."""
    number = unreadable_layer(qwen)
    if number is not None:
        raise ModelError(
            f"the attention of {qwen.model_id} cannot be read in layer {number}, so it cannot glance",
            "turn glances off (glance=False, or answer.glance.enabled = false)",
        )


class AttentionProbe:
    """Probe of the decoder's attention for the first tokens of an answer in a few layers: those of the stock model
    while it is entered, and those passed to `see`.

    It records each token's query in each layer. The attention is computed at once when the answer has ended, as the
    product of the queries with all cached keys, since attention is a share. So a token costs next to nothing, nothing
    waits for the device, and the model's own attention stays the fused one, which gives no weights. A layer with enough
    queries is not watched any more.
    """

    def __init__(self, qwen: QwenVL, kv: Any, visual: slice, *, glance: bool = False) -> None:
        """`visual`: rows of the cache with visual tokens."""
        attending = qwen.layers.attending
        if glance:
            numbers = glanced_layers(attending)
        else:
            numbers = probed_layers(attending)
        self._family = qwen.family
        self._attentions = {number: qwen.attentions[number] for number in numbers}
        self._kv = kv
        self._visual = visual
        self._notes = {number: _Notes() for number in numbers}
        self._hooks: dict[int, Any] = {}
        self._sum: torch.Tensor | None = None

    def __enter__(self) -> AttentionProbe:
        for number, attention in self._attentions.items():
            self._hooks[number] = attention.register_forward_hook(self._look, with_kwargs=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks.values():
            hook.remove()

    @torch.inference_mode()
    def attention(self) -> torch.Tensor:
        """Return the attention on each visual token divided by its largest: float32 [K] on the CPU, in [0, 1].

        Asked for when the answer has ended, and before the cache is used for anything else.
        """
        for notes in self._notes.values():
            if notes.queries:
                visual = notes.sum_attention()[self._visual]
                if self._sum is None:
                    self._sum = visual
                else:
                    self._sum = self._sum + visual.to(self._sum.device)
        self._notes = {}
        if self._sum is None:
            return torch.zeros(self._visual.stop - self._visual.start)
        total = self._sum.cpu()
        return total / total.max().clamp(min=torch.finfo(total.dtype).tiny)

    def watches(self, layer: int) -> bool:
        """Return whether a token in this layer would be noted."""
        notes = self._notes.get(layer)
        return notes is not None and len(notes.queries) < PROBED_TOKENS

    def see(self, layer: int, query: torch.Tensor, keys: torch.Tensor) -> None:
        """Note a token in one layer, if the probe still `watches` that layer. The tensors are not copied.

        Args:
            layer: Number of the layer.
            query: The token's rotated query, [heads, head_dim].
            keys: All rotated keys so far, [kv heads, tokens, head_dim].
        """
        if not self.watches(layer):
            return
        notes = self._notes[layer]
        notes.queries.append(query)
        notes.lengths.append(keys.shape[1])
        notes.keys = keys
        if len(notes.queries) == PROBED_TOKENS and layer in self._hooks:
            self._hooks[layer].remove()

    @torch.inference_mode()
    def _look(self, attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if kwargs["past_key_values"] is not self._kv:
            return
        query = last_query(self._family, attention, kwargs["hidden_states"], kwargs["position_embeddings"])
        self.see(attention.layer_idx, query, self._kv.layers[attention.layer_idx].keys[0])


@dataclass(slots=True)
class _Notes:
    """One layer's queries [heads, head_dim], how many keys there were for each, and those that the last one had."""

    queries: list[torch.Tensor] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    keys: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def sum_attention(self) -> torch.Tensor:
        """Return the attention on every key, summed over heads and queries: float32 [tokens]."""
        tokens = len(self.queries)
        head_dim = self.queries[0].shape[-1]
        by_head = torch.stack(self.queries, dim=1).view(len(self.keys), -1, tokens, head_dim)
        lengths = torch.tensor(self.lengths, device=self.keys.device)
        valid = torch.arange(self.keys.shape[1], device=self.keys.device) < lengths[:, None]
        mask = valid.expand(by_head.shape[1], -1, -1).flatten(0, 1)
        return attention_weights(by_head.reshape(-1, head_dim), self.keys, mask).sum(dim=(0, 1))


def last_query(
    family: ModelFamily, attention: Any, entering: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Return the rotated query of the last token that enters an attention.

    Args:
        family: The model's family.
        attention: The stock attention module.
        entering: Hidden states of L tokens, [1, L, D]; the last one is text, whose three M-RoPE rows agree.
        rotary: Cosines and sines of the tokens, [..., L, head_dim].

    Returns:
        The query, [heads, head_dim].
    """
    query, _ = projected_query(family, attention, entering[:, -1])
    cos, sin = (part.flatten(0, -2)[-1] for part in rotary)
    return rotate_native(query[0], cos, sin)


def attention_weights(query: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Return the attention weights of queries on keys.

    Args:
        query: [heads, head_dim].
        keys: [kv heads, L, head_dim].
        mask: bool, broadcast to the result: keys that each query attends to; None for all.

    Returns:
        The weights, float32 [kv heads, heads / kv heads, L].
    """
    head_dim = query.shape[-1]
    scores = (query.to(keys.dtype).view(len(keys), -1, head_dim) @ keys.mT).float() * head_dim**-0.5
    return torch.softmax(scores if mask is None else scores.where(mask, -torch.inf), dim=-1)


def merge_feedback(feedback: Sequence[Feedback]) -> Feedback:
    """Return the feedback of several questions about the same regions as one: the most that any of them attended to,
    and was similar to."""
    first, *others = feedback
    if not others:
        return first
    return replace(
        first,
        attention=np.maximum.reduce([part.attention for part in feedback]),
        similarity=np.maximum.reduce([part.similarity for part in feedback]),
    )


def feedback_from(
    prompt: PreparedPrompt, probe: AttentionProbe, pooled: torch.Tensor, axes: EmbeddingAxes | None = None
) -> Feedback:
    """Return the feedback of an answer about the newest frame of its prompt.

    Args:
        prompt: The prompt.
        probe: Probe that recorded the attention of the answer.
        pooled: Embedding of the question, float32 [D].
        axes: Axes of the allocator, if it reads embeddings of tiles as channels.

    Raises:
        NonFiniteError: NaN or Inf in the attention.
    """
    embeds = prompt.embeds.float()
    attention = probe.attention()
    if not attention.isfinite().all():
        raise NonFiniteError("the decoder's attention holds NaN or Inf; try dtype float32 or bfloat16")
    return Feedback(
        stamp=prompt.stamps[-1],
        regions=prompt.regions.int().cpu().numpy(),
        attention=attention.numpy(),
        similarity=F.cosine_similarity(embeds, pooled.to(embeds.device)[None], dim=-1).cpu().numpy(),
        embedding=None if axes is None else axes(embeds.cpu()).detach().numpy(),
    )
