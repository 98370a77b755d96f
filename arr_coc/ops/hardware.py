"""Samples by a device's texture units, with the gradients of the exact formula."""

from __future__ import annotations

from typing import Any, Protocol

import torch

LARGEST_ERROR = 2 / 255
"""Of a sample, as a share of the range: texture units weigh texels with 8 bits."""


class TextureUnits(Protocol):
    """A picture on a device that samples it in hardware (`arr_coc.backends.registry.texture_units`)."""

    def sample(self, points: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        """Return the samples float32 [..., 3] in 0..255 at `points` [..., 2] (y, x) and `level` [...], without a
        gradient."""
        ...


class HardwareSample(torch.autograd.Function):
    """Forward by the hardware, backward by the exact formula."""

    @staticmethod
    def forward(ctx: Any, points: torch.Tensor, level: torch.Tensor, texture: TextureUnits, exact: Any) -> torch.Tensor:
        """`points` [..., 2] and `level` [...] as `exact(points, level)` takes them, which gives [..., 3]."""
        ctx.save_for_backward(points, level)
        ctx.exact = exact
        return texture.sample(points, level)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients to points and level."""
        indices = [index for index in (0, 1) if ctx.needs_input_grad[index]]
        with torch.enable_grad():
            inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            results = torch.autograd.grad(ctx.exact(*inputs), [inputs[index] for index in indices], gradient)
        gradients = dict(zip(indices, results, strict=True))
        return gradients.get(0), gradients.get(1), None, None
