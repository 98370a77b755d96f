"""DivPrune: of the encoder's tokens, those that are farthest from each other.

Alvar et al. 2025, "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models" (arXiv:2503.02175): the
max-min diversity problem over cosine distances, solved greedily. No attention and no question plays a part.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from arr_coc.qwen.encoding import EncodedFrame, pooled
from evaluation.strategies.after_encoder import AfterEncoder
from evaluation.strategies.base import Strategy


def most_diverse(embeds: torch.Tensor, count: int) -> torch.Tensor:
    """`count` rows of [N, D], in order: first the one farthest from its nearest neighbour, then always the one that
    is farthest from the nearest of those chosen. int64 [count]."""
    rows = F.normalize(embeds.float(), dim=-1)
    distance = 1 - rows @ rows.T
    apart = distance.clone().fill_diagonal_(torch.inf).amin(dim=0)
    chosen = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    for step in range(min(count, len(rows))):
        best = apart.masked_fill(chosen, -torch.inf).argmax()
        chosen[best] = True
        apart = torch.minimum(apart, distance[best]) if step else distance[best]
    return chosen.nonzero()[:, 0]


def _thin(frame: EncodedFrame, tokens: int) -> EncodedFrame:
    return pooled(frame, frame.regions[0, most_diverse(frame.tokens.embeds[0], tokens)])


def _flops(tokens: int, kept: int, width: int) -> int:
    """The matrix of cosines; the greedy search takes minima, not products."""
    return 2 * tokens * tokens * width


DIVPRUNE = Strategy("divprune", AfterEncoder(thin=_thin, thin_flops=_flops), encodes=("prune",))
