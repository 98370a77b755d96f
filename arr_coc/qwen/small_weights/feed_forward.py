"""Feed-forward layers of a model with small weights, whose activation is computed as rows are quantised.

The activation of 952 rows of Qwen3-VL-2B's tower takes torch a third as long as both products around it.
"""

from __future__ import annotations

import torch
from torch import nn

from arr_coc.qwen.small_weights.layers import SmallLinear

SILU = ("SiLU", "SiLUActivation")
GELU_BY_TANH = ("GELUTanh", "PytorchGELUTanh")
"""Classes of activations, by name, since transformers renames them."""


class GatedFeedForward(nn.Module):
    """`gate_proj`, `up_proj` and `down_proj` with SiLU, as decoders have them."""

    gate_proj: SmallLinear
    up_proj: SmallLinear
    down_proj: SmallLinear

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """As the stock module."""
        return self.down_proj.after_activation(self.up_proj(rows), self.gate_proj(rows))


class GeluFeedForward(nn.Module):
    """`linear_fc1` and `linear_fc2` with GELU by tanh, as Qwen3-VL's tower has them."""

    linear_fc1: SmallLinear
    linear_fc2: SmallLinear

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """As the stock module."""
        return self.linear_fc2.after_activation(self.linear_fc1(rows))


def use_small_feed_forward(model: nn.Module) -> None:
    """Let the feed-forward layers of a model with small weights compute their activations so."""
    for module in model.modules():
        children = dict(module.named_children())
        small = {name for name, child in children.items() if isinstance(child, SmallLinear)}
        activation = type(children.get("act_fn")).__name__
        if small == {"gate_proj", "up_proj", "down_proj"} and activation in SILU:
            module.__class__ = GatedFeedForward
        elif small == {"linear_fc1", "linear_fc2"} and activation in GELU_BY_TANH:
            module.__class__ = GeluFeedForward
