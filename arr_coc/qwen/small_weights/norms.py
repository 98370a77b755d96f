"""Norms of rows by their root mean square, as the compiled kernel computes them.

Those of 280 rows of Qwen3-VL-2B take it a fifth of torch's time, which reads and writes them in six operations.
"""

from __future__ import annotations

import torch
from torch import nn

from arr_coc.qwen.small_weights.kernel import kernel_or_none, normalise_rows

NORMS = ("Qwen2RMSNorm", "Qwen2VLRMSNorm", "Qwen2_5_VLRMSNorm", "Qwen3VLTextRMSNorm")
"""Classes of norms by name, which multiply by their weight; Qwen3.5's adds 1 to it."""


class SmallNorm(nn.Module):
    """Norm of rows [..., width] by their root mean square."""

    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """As the stock module, float32."""
        kernel = kernel_or_none()
        assert kernel is not None
        return normalise_rows(kernel, rows.float().contiguous(), self.weight, self.variance_epsilon)


def use_small_norms(model: nn.Module) -> None:
    """Let the kernel, if it is there, compute the norms of a model in float32 that is not trained."""
    if kernel_or_none() is None:
        return
    for module in model.modules():
        if type(module).__name__ in NORMS:
            module.__class__ = SmallNorm
