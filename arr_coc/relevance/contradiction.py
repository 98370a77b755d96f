"""`contradiction` of attention and saliency: what stands out is no guide if the model looked away from it."""

from __future__ import annotations

import torch
from torch.nn import functional as F

LOOKED_AWAY = 0.6
LOOKED_AT = 1.0
"""Saliency of the attended tiles, relative to that of the whole frame: from the first down the model looked away from
what stands out, from the second up it did not. In drawn scenes it is about a half if a faint word is asked for beside
bright shapes, and more than the whole frame's if the question is about what stands out (evaluation/README.md)."""

GLANCE_TRUST = 0.3
"""Trust in a glance at first, while an answer has 1: relevance counts its attention to this power (evaluation/README.md
has the choice). Feedback of this trust, or more, may contradict fully."""

TINY = 1e-6


def contradiction(saliency: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    """Contradiction of attention and saliency: [B] in [0, 1], from `saliency` [B, gh, gw] and `prior` [B, 3, gh, gw].

    Attention is a prior's first map, as its square root, and counts squared, so that its peak decides. A thing is
    looked at by its edges, so each tile has the strongest saliency of its neighbours. As trust fades, so does
    the contradiction; 0 if nothing is known, and if nothing stands out.
    """
    attention = prior[:, 0]
    trust = prior[:, 2]
    attention_weight = attention**4 * trust
    edge_saliency = F.max_pool2d(saliency[:, None], kernel_size=3, stride=1, padding=1)[:, 0]
    attended_saliency = (attention_weight * edge_saliency).sum(dim=(1, 2)) / attention_weight.sum(dim=(1, 2)).clamp(
        min=TINY
    )
    usual = edge_saliency.mean(dim=(1, 2))
    degree = ((LOOKED_AT - attended_saliency / usual.clamp(min=TINY)) / (LOOKED_AT - LOOKED_AWAY)).clamp(0, 1)
    is_known = (attention_weight.sum(dim=(1, 2)) > TINY) & (usual > TINY)
    return degree * (trust.amax(dim=(1, 2)) / GLANCE_TRUST).clamp(max=1) * is_known
