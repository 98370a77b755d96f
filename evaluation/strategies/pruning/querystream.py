"""QueryStream: tokens that are like the question and new to a smoothed history, before the language model.

"QueryStream: Advancing Streaming Video Understanding with Query-Aware Pruning and Proactive Response" (ICLR 2026,
openreview.net/forum?id=738HjJEbml), its Query-Aware Differential Pruning. Of a frame the tokens stay that are more
relevant to the question than its mean, and whose cosine with the history of their place is below 0.9; the first frame
stays whole. The history is the mean of earlier frames with weights that fade, 0.1 of each new one. Both numbers are
those of its code.

The paper takes features from CLIP, of image and question, which the stock model does not have. Here they are the visual
tokens' embeddings and those of the question's tokens, as for `cdpruner`. A threshold spends no budget exactly: tokens
that pass come first, then by relevance times novelty. As with `evs`, the first frame stays whole and the others share
the rest, of each at least one token; below one frame's worth, each frame has its own budget.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from evaluation.strategies.pruning.base import Pruner
from evaluation.strategies.pruning.staged import Candidates

HISTORY_WEIGHT = 0.1
"""Weight of a new frame in the history."""

SAME_ABOVE = 0.9
"""Cosine with the history from which on a token is not new."""


class QueryStream(Pruner):
    """Relevance to the question times novelty against a smoothed history."""

    name = "querystream"

    def choose(self, candidates: Candidates, count: int) -> torch.Tensor:
        states = candidates.states[candidates.visual]
        relevance = candidates.cosines(states, candidates.states[candidates.question]).mean(dim=1)
        candidates.charge(2 * states.numel())
        priority = priorities(states, relevance, candidates.frames)
        first = candidates.frames[0].stop
        spare = count - first
        if len(candidates.frames) == 1 or spare < len(candidates.frames) - 1:
            chosen = [
                frame.start + priority[frame].topk(budget).indices
                for frame, budget in zip(candidates.frames, candidates.budgets, strict=True)
            ]
            return torch.cat(chosen)
        for frame in candidates.frames[1:]:  # a frame that shows nothing cannot be introduced
            priority[frame.start + priority[frame].argmax()] = torch.inf
        later = first + priority[first:].topk(spare).indices
        return torch.cat([torch.arange(first, device=later.device), later])


def priorities(states: torch.Tensor, relevance: torch.Tensor, frames: Sequence[slice]) -> torch.Tensor:
    """Return the order in which tokens stay, the highest first.

    Args:
        states: Embeddings of the tokens of all frames, [N, D].
        relevance: Their relevance to the question, float32 [N].
        frames: Rows of each frame's tokens, oldest first. A frame of another size begins a new history.

    Returns:
        Relevance, scaled to [0, 1], times novelty in [0, 1], and 1 more for a token that passes both thresholds:
        float32 [N].
    """
    scaled = (relevance - relevance.min()) / (relevance.max() - relevance.min()).clamp(min=1e-6)
    priority = torch.empty_like(relevance)
    history: torch.Tensor | None = None
    for frame in frames:
        features = F.normalize(states[frame].float(), dim=-1)
        if history is None or len(history) != len(features):
            priority[frame] = scaled[frame]
            history = features
            continue
        cosine = (features * F.normalize(history, dim=-1)).sum(dim=-1)
        passes = (relevance[frame] > relevance[frame].mean()) & (cosine < SAME_ABOVE)
        priority[frame] = scaled[frame] * ((1 - cosine) / 2).clamp(0, 1) + passes
        history = HISTORY_WEIGHT * features + (1 - HISTORY_WEIGHT) * history
    return priority
