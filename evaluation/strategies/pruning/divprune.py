"""DivPrune: tokens that are most unlike each other, before the language model.

Alvar et al. 2025, "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models" (arXiv:2503.02175): the
max-min diversity problem over cosine distances, solved greedily. No attention and no question plays a part. Each frame
keeps its own budget.
"""

from __future__ import annotations

import torch

from evaluation.strategies.pruning.base import Pruner
from evaluation.strategies.pruning.staged import Candidates


class DivPrune(Pruner):
    """Greedy max-min diversity, frame by frame."""

    name = "divprune"

    def choose(self, candidates: Candidates, count: int) -> torch.Tensor:
        selections = []
        for place, budget in zip(candidates.frames, candidates.budgets, strict=True):
            states = candidates.states[candidates.visual[place]]
            selections.append(place.start + most_diverse(1 - candidates.cosines(states, states), budget))
        return torch.cat(selections)


def most_diverse(distance: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` rows of a symmetric matrix [N, N], in order: first the one farthest from its nearest neighbour,
    then always the one that is farthest from the nearest of those chosen. int64 [count]."""
    min_distance = distance.clone().fill_diagonal_(torch.inf).amin(dim=0)
    mask = torch.zeros(len(distance), dtype=torch.bool, device=distance.device)
    for step in range(min(count, len(distance))):
        best = min_distance.masked_fill(mask, -torch.inf).argmax()
        mask[best] = True
        min_distance = torch.minimum(min_distance, distance[best]) if step else distance[best]
    return mask.nonzero()[:, 0]
