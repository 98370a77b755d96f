"""Balancing the three ways of knowing against each other, by what each says about this frame and question."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

WEAK_SALIENCY = 0.3
"""Where the strongest saliency of a frame is below this, what stands out says little, and information is asked
instead."""

_STATISTICS = 6
_PEAK_GAIN = 2.0
_BEGIN_BIAS = (
    -1.0,
    0.0,
    0.5,
)  # information speaks everywhere, saliency where something stands out, the answer with most right


class AdaptiveTensionBalancer(nn.Module):
    """Weights for information, perspective and participation, each in [0, 1] on its own; all may be high.

    A small net of the question's mean embedding and of mean and maximum of each map. Untrained, a map counts more the
    more something sticks out of it (maximum − mean), and the question does not matter. Two guards: where the
    strongest saliency is below `WEAK_SALIENCY`, perspective is cut in proportion, and information raised unless the
    question is heard; participation counts only as far as it is trusted.
    """

    def __init__(self, query_dim: int = 0, width: int = 16) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, width, bias=False) if query_dim else None
        self.statistics = nn.Linear(_STATISTICS, width)
        self.out = nn.Linear(width, 3)
        with torch.no_grad():
            self._begin_by_peaks()

    def forward(self, scores: torch.Tensor, trust: torch.Tensor, query: torch.Tensor | None = None) -> torch.Tensor:
        """`scores` [B, 3, gh, gw], `trust` [B] in participation, `query` [B, Lq, D] (padded by zeros) → [B, 3]."""
        flat = scores.flatten(2)
        strongest = flat.amax(dim=2)
        hidden = self.statistics(torch.cat([flat.mean(dim=2), strongest], dim=1))
        heard = query is not None and self.query is not None
        if query is not None and self.query is not None:
            words = query.any(dim=2).sum(dim=1, keepdim=True).clamp(min=1)
            hidden = hidden + self.query(query.sum(dim=1) / words)
        information, perspective, participation = torch.sigmoid(self.out(F.relu(hidden))).unbind(dim=1)
        strength = (strongest[:, 1] / WEAK_SALIENCY).clamp(max=1)
        if not heard:
            information = information + (1 - information) * (1 - strength)
        return torch.stack([information, perspective * strength, participation * trust], dim=1)

    def _begin_by_peaks(self) -> None:
        self.statistics.weight[:_STATISTICS] = torch.eye(_STATISTICS)
        self.statistics.bias[:_STATISTICS] = 0
        self.out.weight.zero_()
        for score in range(3):
            self.out.weight[score, score], self.out.weight[score, score + 3] = -_PEAK_GAIN, _PEAK_GAIN
        self.out.bias.copy_(torch.tensor(_BEGIN_BIAS))
        if self.query is not None:
            self.query.weight.zero_()


def weighted(scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum of the maps [B, 3, gh, gw] by their weights [B, 3], divided by the weights' sum: [B, gh, gw] in [0, 1]."""
    return torch.einsum("bshw,bs->bhw", scores, weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-6))
