"""Linear layers and attention by oneDNN, on processors that torch's own products use half of.

torch multiplies float32 by MKL, which keeps to AVX2 on processors that are not Intel's. oneDNN, which torch has too,
takes AVX-512 wherever it is. On an AMD EPYC 9005 its products of 32 rows or more take 0.45 to 0.65 of the time.

torch's attention multiplies by MKL, too. Here it is one head and some queries at a time, whose scores stay in a core's
second cache. Scores and softmax are float32, so in bfloat16 they are closer to exact attention than torch's. Among 992
rows of 16 heads it takes 0.7 of the time in float32 and 0.6 in bfloat16, among 252 rows 0.8 and 0.65; among 128 longer.
With AMX, attention in bfloat16 is a compiled kernel's instead.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from arr_coc.qwen.compiled_attention import attend_by_tiles, kernel_for
from arr_coc.qwen.cpu_precision import multiplies_bfloat16

ROWS = 32
"""Products of fewer rows are MKL's: there oneDNN's take as long, or longer."""

ATTENTION_ROWS = 192
"""Attention among fewer rows is torch's."""

QUERIES = 256
"""Queries whose scores are computed at once."""

CPU_FACTS = Path("/proc/cpuinfo")
_VENDOR_BYTES = 256
"""The vendor stands in the second line."""


@cache
def gains_by_onednn() -> bool:
    """Return True if the processor has AVX-512 and is not Intel's, and this torch has oneDNN's product."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or _product() is None:
        return False
    try:
        with CPU_FACTS.open("rb") as facts:
            beginning = facts.read(_VENDOR_BYTES)
    except OSError:
        return False
    return b"vendor_id" in beginning and b"GenuineIntel" not in beginning


def use_onednn(model: nn.Module) -> None:
    """Let oneDNN multiply in the linear layers of a model that gain by it; weights and results stay what they are, up
    to rounding."""
    if not gains_by_onednn():
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDnnLinear


class OneDnnLinear(nn.Linear):
    """`nn.Linear`, by oneDNN if no gradient is needed."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """As `nn.Linear`."""
        return linear(input, self.weight, self.bias)


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return `F.linear`, by oneDNN for ROWS rows or more, in float32 on a CPU, without gradients.

    Args:
        rows: [..., inputs].
        weight: [outputs, inputs].
        bias: [outputs]; None for none.
    """
    product = _product() if _suits(rows, weight) else None
    if product is None:
        return F.linear(rows, weight, bias)
    output: torch.Tensor = product(rows, weight, bias, "none", [], "")
    return output


def _suits(rows: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        not torch.is_grad_enabled()
        and rows.dtype == weight.dtype == torch.float32
        and rows.device.type == weight.device.type == "cpu"
        and rows.numel() >= ROWS * rows.shape[-1]
        and gains_by_onednn()
    )


def attend_all(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the attention of queries over all keys, without a mask, in the shape of the queries.

    Args:
        query: [B, Q, heads, head_dim].
        key: [B, N, heads, head_dim].
        value: [B, N, heads, head_dim].
    """
    if query.dtype == torch.bfloat16 and (kernel := kernel_for(query, key, value)) is not None:
        return attend_by_tiles(kernel, query, key, value)
    if (
        query.device.type == "cpu"
        and not torch.is_grad_enabled()
        and min(query.shape[1], key.shape[1]) >= ATTENTION_ROWS
        and (query.dtype == torch.float32 or (query.dtype == torch.bfloat16 and multiplies_bfloat16()))
        and gains_by_onednn()
    ):
        return _by_onednn(query, key, value)
    mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    return mixed.transpose(1, 2)


def _by_onednn(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    mixed = torch.empty(query.shape, dtype=query.dtype)
    scale = query.shape[-1] ** -0.5
    for image in range(len(query)):
        for head in range(query.shape[2]):
            keys = key[image, :, head].float().contiguous()
            values = value[image, :, head].t().contiguous()  # as weights of a linear layer
            for begin in range(0, query.shape[1], QUERIES):
                part = slice(begin, begin + QUERIES)
                scores = linear(query[image, part, head].float() * scale, keys, None)
                mixed[image, part, head] = linear(scores.softmax(dim=-1).to(values.dtype), values, None)
    return mixed


@cache
def _product() -> Any:
    """oneDNN's linear layer, which torch has under a private name only; None in a torch that has it no more."""
    if not torch.backends.mkldnn.is_available():
        return None
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return None if operator is None else operator.default
