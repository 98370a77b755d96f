"""Cached keys that can stand anywhere: caught before their rotation, and rotated once, in float32, for one place.

A rotation for another place could also be made from rotated keys, but in bfloat16 each one would add its own rounding.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from arr_coc.qwen.qwenvl import QwenVL


class KeyCatcher:
    """Catches the keys of every layer before they are rotated, of the prefill that runs while it is entered.

    `keys`: one tensor [1, heads, L, head_dim] a layer, in the model's dtype, on the layer's device.
    """

    def __init__(self, qwen: QwenVL) -> None:
        self._attentions = [layer.self_attn for layer in qwen.language_model.layers]
        self._hooks: list[Any] = []
        self.keys: list[torch.Tensor] = []

    def __enter__(self) -> KeyCatcher:
        for attention in self._attentions:
            # Qwen3-VL norms its keys after the projection; the norm's output is the last thing before the rotation.
            last = attention.k_norm if hasattr(attention, "k_norm") else attention.k_proj
            self._hooks.append(last.register_forward_hook(self._catch(attention.head_dim)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def _catch(self, head_dim: int) -> Any:
        def hook(module: Any, args: tuple[Any, ...], output: torch.Tensor) -> None:
            self.keys.append(output.reshape(*output.shape[:2], -1, head_dim).transpose(1, 2))

        return hook


def rotation(qwen: QwenVL, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines float32 [L, head_dim] of M-RoPE positions float32 [3, L] (t, h, w)."""
    language_model = qwen.language_model
    cos, sin = language_model.rotary_emb(torch.empty(0, device=qwen.device), positions[:, None].to(qwen.device))
    return _composed(language_model, cos), _composed(language_model, sin)


def rotate(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Queries or keys [..., head_dim] rotated in float32, in the dtype in which they came."""
    return turned(keys.float(), cos.to(keys.device), sin.to(keys.device)).to(keys.dtype)


def turned(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Queries or keys [..., head_dim] rotated in the dtype in which they came, as the stock decoder does."""
    first, second = rows.chunk(2, dim=-1)
    return rows * cos + torch.cat([-second, first], dim=-1) * sin


def _composed(language_model: Any, rows: torch.Tensor) -> torch.Tensor:
    """Rows [1, L, head_dim]; older transformers leave the three axes of Qwen2-VL apart, [3, 1, L, head_dim]."""
    if rows.ndim == 3:
        return rows[0]
    section = language_model.config.rope_scaling["mrope_section"]
    parts = rows[:, 0].split([*section, *section], dim=-1)
    return torch.cat([part[index % 3] for index, part in enumerate(parts)], dim=-1)
