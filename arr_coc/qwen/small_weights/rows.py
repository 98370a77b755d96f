"""Rows that a layer with small weights multiplies, as they are quantised."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Rows:
    """Contiguous rows float32 [N, inputs].

    `activated`: they are quantised after their activation, the GELU by tanh, or `gates` [N, inputs] by SiLU times the
    rows. `left_out`: inputs that are taken for zeros after it, int64 [K]. `ratio`: if above 0, rows are not multiplied
    if a value is larger by this than its row is on average.
    """

    values: torch.Tensor
    activated: bool = False
    gates: torch.Tensor | None = None
    left_out: torch.Tensor | None = None
    ratio: float = 0.0

    def computed(self) -> Rows:
        """Return the rows after their activation."""
        if not self.activated:
            return self
        if self.gates is None:
            return Rows(F.gelu(self.values, approximate="tanh"), ratio=self.ratio)
        return Rows(F.silu(self.gates).mul_(self.values), ratio=self.ratio)

    def without(self, channels: torch.Tensor) -> Rows:
        """Return the rows with these inputs left out, int64 [K], whatever stands out."""
        return replace(self, left_out=channels, ratio=0.0)

    def zeroed(self) -> torch.Tensor | None:
        """Return the rows as they are to be quantised, with zeros in the inputs that are left out; None if a value
        stands out."""
        rows = self.computed().values
        if self.ratio:
            sizes = rows.abs()
            if bool((sizes.amax(dim=1) > self.ratio * sizes.mean(dim=1)).any()):
                return None
        return rows if self.left_out is None else rows.index_fill(1, self.left_out, 0)
