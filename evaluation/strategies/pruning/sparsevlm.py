"""SparseVLM: tokens that the question's visual words attend to most, inside the language model; others are merged.

Zhang et al. 2024, "SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model Inference"
(arXiv:2410.04417). Raters are the question's tokens that are nearer to the visual embeddings than its mean: the share
of a softmax over the question, mean over the visual tokens. A visual token's worth is the raters' attention on it, mean
over raters and heads. Cuts are behind layers 2, 6 and 15 of 32, as in the paper's code, in proportion in other models;
encoder and the first of these layers see everything.

By the paper a cut removes λ (N - rank) of N tokens, the rank being that of the raters' attention, and λ is chosen for a
budget in advance. Here λ is the one that leads to the budget if the attention is of full rank, and the last cut leaves
exactly the budget: an attention of a lower rank removes more tokens earlier.

Of what is removed, the 30 % of most worth are recycled: a tenth as many clusters, by density peaks (Rodriguez and
Laio 2014; Du et al. 2016 for the density of k neighbours), go on as the mean of their members. These tokens are of the
budget, and each keeps the place of its centre; the paper's code puts them behind the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from evaluation.strategies.pruning.base import Pruner
from evaluation.strategies.pruning.staged import Candidates

CUTS = (3 / 32, 7 / 32, 16 / 32)
"""Depths of the layers before which tokens leave: behind layers 2, 6 and 15 of 32, counted from 0."""

RECYCLED = 0.3
"""Share of the removed tokens that are recycled."""

MEMBERS = 10
"""Recycled tokens of a cluster, on average."""


class SparseVLM(Pruner):
    """Three cuts by the attention of raters, with recycling."""

    name = "sparsevlm"

    def schedule(self, layers: int, tokens: int, budget: int) -> Mapping[int, int]:
        return {
            max(1, round(depth * layers)): max(budget, round(tokens * (budget / tokens) ** (cut / len(CUTS))))
            for cut, depth in enumerate(CUTS, 1)
        }

    def adapt(self, candidates: Candidates, counts: Sequence[int]) -> int:
        """Return N - λ (N - rank), with the λ that leads to the last count, which the last cut leaves."""
        tokens, budget = len(candidates.visual), counts[-1]
        if len(counts) == 1 or tokens <= budget:
            return min(tokens, budget)
        attention = candidates.question_attention()[raters(candidates)]
        candidates.charge(2 * attention.numel() * len(attention))
        full = min(len(attention), budget - 1)
        ratio = 1 - ((budget - full) / (tokens - full)) ** (1 / len(counts))
        rank = min(int(torch.linalg.matrix_rank(attention)), full)
        return max(budget, round(tokens - ratio * (tokens - rank)))

    def choose(self, candidates: Candidates, count: int) -> torch.Tensor:
        tokens = len(candidates.visual)
        if count >= tokens:
            return torch.arange(tokens, device=candidates.visual.device)
        worth = candidates.question_attention()[raters(candidates)].mean(dim=0)
        kept = most_kept(tokens, count)
        order = worth.argsort(descending=True, stable=True)
        recycled = order[kept : kept + recycled_tokens(tokens - kept)]
        states = candidates.states[candidates.visual[recycled]]
        candidates.charge(2 * len(recycled) ** 2 * states.shape[1])
        centres, means = clusters(states.float(), count - kept)
        candidates.merge(recycled[centres], means)
        return torch.cat([order[:kept], recycled[centres]])


def raters(candidates: Candidates) -> torch.Tensor:
    """Return which of the question's own tokens rate the visual ones: bool [M], at least one."""
    visual, question = (states.float() for states in candidates.embeddings)
    candidates.charge(2 * len(visual) * question.numel())
    share = torch.softmax(visual @ question.T, dim=1).mean(dim=0)
    return share >= share.mean().minimum(share.max())


def recycled_tokens(removed: int) -> int:
    """Return how many of so many removed tokens are recycled, at least one."""
    return int(RECYCLED * removed) + 1


def most_kept(tokens: int, count: int) -> int:
    """Return how many of `tokens` stay as they are if `count`, which is fewer, go on with the clusters of others: half
    or more, if one cut removes so many."""
    kept = count - 1
    while kept > count // 2 and kept + recycled_tokens(tokens - kept) // MEMBERS + 1 > count:
        kept -= 1
    return kept


def clusters(states: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Group states [P, D], of which there are at least `count`, around the peaks of their density.

    Returns:
        The centres, int64 [count], and the mean of the states around each, [count, D].
    """
    distance = torch.cdist(states, states) / states.shape[1] ** 0.5
    density = (-distance.topk(count, largest=False).values.square().mean(dim=1)).exp()
    # of equal densities the first one counts as higher, so that there is one peak
    order = density.argsort(descending=True, stable=True)
    rank = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
    to_higher = distance.masked_fill(rank >= rank[:, None], torch.inf).amin(dim=1)
    to_higher[order[0]] = distance.max()
    centres = (to_higher * density).argsort(descending=True, stable=True)[:count]
    nearest = distance[:, centres].argmin(dim=1)
    nearest[centres] = torch.arange(count, device=centres.device)
    sums = states.new_zeros(count, states.shape[1]).index_add(0, nearest, states)
    return centres, sums / nearest.bincount(minlength=count)[:, None]
