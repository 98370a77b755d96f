"""CDPruner: tokens that are unlike each other and like the question, before the language model.

Zhang et al. 2025, "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in MLLMs"
(arXiv:2506.10967): the most likely set of a determinantal point process whose kernel is the tokens' cosine similarity,
weighted on both sides by relevance to the instruction. The set is found greedily with updates of the Cholesky factor
(Chen et al. 2018, "Fast Greedy MAP Inference for Determinantal Point Process to Improve Recommendation Diversity").

The paper takes relevance from CLIP's text encoder, which the stock model does not have. Here it is the mean cosine of
a visual token with the embeddings of the question's tokens, scaled to [0, 1] over all tokens, and the weight is
exp(a * relevance), a = w / 2(1 - w), as in OpenVINO GenAI, with its default `relevance_weight` w of 0.5. All frames of
a clip are one set.
"""

from __future__ import annotations

import torch

from evaluation.strategies.pruning.base import Pruner
from evaluation.strategies.pruning.staged import Candidates

RELEVANCE_WEIGHT = 0.5

LEAST_GAIN = 1e-5
"""A token that adds less, of at least 1, is a sum of those before, but for rounding."""


class CDPruner(Pruner):
    """Greedy search for the most likely set of a conditional determinantal point process."""

    name = "cdpruner"

    def choose(self, candidates: Candidates, count: int) -> torch.Tensor:
        states = candidates.states[candidates.visual]
        relevance = candidates.cosines(states, candidates.states[candidates.question]).mean(dim=1)
        span = (relevance.max() - relevance.min()).clamp(min=1e-6)
        weight = RELEVANCE_WEIGHT / (2 * (1 - RELEVANCE_WEIGHT)) * (relevance - relevance.min()) / span
        kernel = candidates.cosines(states, states) * weight.exp() * weight.exp()[:, None]
        candidates.charge(len(states) * count * (count - 1))
        return likeliest_set(kernel, count)


def likeliest_set(kernel: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` rows of a kernel [N, N], each of which adds most to the determinant of those before: int64
    [count]. A set has at most as many rows as the kernel has ranks; the others are a set of what is left."""
    selection: list[int] = []
    while len(selection) < count:
        factors = kernel.new_zeros(count - len(selection), len(kernel))
        gain = kernel.diagonal().clone()
        gain[selection] = -torch.inf
        for step in range(len(factors)):
            best = int(gain.argmax())
            if step and gain[best] < LEAST_GAIN:
                break
            update = kernel[best] - factors[:step, best] @ factors[:step]
            factors[step] = update / gain[best].clamp(min=LEAST_GAIN).sqrt()
            gain = gain - factors[step].square()
            selection.append(best)
            gain[best] = -torch.inf
    return torch.tensor(selection, device=kernel.device)
