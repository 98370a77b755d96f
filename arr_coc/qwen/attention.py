"""What the decoder looked at: its attention on the visual tokens, taken from the cached keys of a few layers."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from arr_coc.qwen.qwenvl import QwenVL

PROBED_LAYERS = 2
"""How many of the last layers are looked at."""

PROBED_TOKENS = 8
"""How many of an answer's first tokens are looked at."""


class AttentionProbe:
    """Sums the attention of an answer's first tokens on the visual tokens, while it is entered.

    Each look costs one query projection and one product with the cached keys; nothing waits for the device, and the
    model's own attention stays the fused one, which gives no weights.
    """

    def __init__(self, qwen: QwenVL, kv: Any, visual: slice) -> None:
        self._layers = qwen.language_model.layers[-PROBED_LAYERS:]
        self._kv = kv
        self._visual = visual
        self._looks = 0
        self._hooks: list[Any] = []
        self._sum: torch.Tensor | None = None

    def __enter__(self) -> AttentionProbe:
        self._hooks = [layer.self_attn.register_forward_hook(self._look, with_kwargs=True) for layer in self._layers]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def attention(self) -> torch.Tensor:
        """Attention on each visual token divided by its largest: float32 [K] on the CPU, in [0, 1]."""
        if self._sum is None:
            return torch.zeros(self._visual.stop - self._visual.start)
        total = self._sum.cpu()
        return total / total.max().clamp(min=torch.finfo(total.dtype).tiny)

    @torch.inference_mode()
    def _look(self, attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if kwargs["past_key_values"] is not self._kv or self._looks >= PROBED_TOKENS * len(self._layers):
            return
        self._looks += 1
        query = attention.q_proj(kwargs["hidden_states"][:, -1]).view(-1, attention.head_dim)
        if hasattr(attention, "q_norm"):
            query = attention.q_norm(query)
        query = _rotate(query, *kwargs["position_embeddings"])
        keys = self._kv.layers[attention.layer_idx].keys[0]
        scores = torch.einsum("hgd,hld->hgl", query.view(len(keys), -1, attention.head_dim), keys)
        weights = torch.softmax(scores.float() * attention.head_dim**-0.5, dim=-1)
        seen = weights[..., self._visual].sum(dim=(0, 1))
        self._sum = seen if self._sum is None else self._sum + seen.to(self._sum.device)


def _rotate(query: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The rotation of the last token, which is text: its three M-RoPE rows agree, whatever shape they come in."""
    cos, sin = cos.flatten(0, -2)[-1], sin.flatten(0, -2)[-1]
    first, second = query.chunk(2, dim=-1)
    return query * cos + torch.cat([-second, first], dim=-1) * sin
