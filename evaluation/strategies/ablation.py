"""This project's way with one of its three scores alone, or without one of them.

The scorers stay as they are; the balancer's weight of an omitted score becomes 0. So a table of these strategies shows
what each score brings to the answers, trained or not.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from arr_coc.allocation.inspection import SCORES
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.balancing import AdaptiveTensionBalancer
from evaluation.strategies.arr_coc import ARR_COC, ARR_COC_GLANCE
from evaluation.strategies.base import Ask, Reply, Strategy


class AblatedBalancer(nn.Module):
    """A balancer of which only the weights of the `kept` scores (bool [3]) count."""

    balancer: AdaptiveTensionBalancer
    kept: torch.Tensor

    def __init__(self, balancer: AdaptiveTensionBalancer, kept: torch.Tensor) -> None:
        super().__init__()
        self.balancer = balancer
        self.register_buffer("kept", kept.float())

    def forward(self, scores: torch.Tensor, trust: torch.Tensor, query: torch.Tensor | None = None) -> torch.Tensor:
        """Arguments and result as `AdaptiveTensionBalancer`: weights [B, 3]."""
        weights = self.balancer(scores, trust, query) * self.kept
        unweighted = weights.sum(dim=1, keepdim=True) <= 0
        return torch.where(unweighted, self.kept.expand_as(weights), weights)


def ablated(qwen: QwenVL, kept: tuple[str, ...]) -> QwenVL:
    """The same model, with an allocator whose relevance comes of the `kept` scores alone."""
    layer = copy.deepcopy(qwen.allocator) if qwen.allocator is not None else ARRCOCLayer().eval()
    mask = torch.tensor([score in kept for score in SCORES])
    layer.realiser.balancer = AblatedBalancer(layer.realiser.balancer, mask)  # type: ignore[assignment]
    return replace(qwen, allocator=layer)


def _strategy(name: str, kept: tuple[str, ...], base: Strategy) -> Strategy:
    def answer(qwen: QwenVL, ask: Ask) -> Reply:
        return base.answer(ablated(qwen, kept), ask)

    return Strategy(f"{base.name}-{name}", answer, encodes=base.encodes)


def _all_of(base: Strategy) -> list[Strategy]:
    alone = [_strategy(f"only-{score}", (score,), base) for score in SCORES]
    left_out = [_strategy(f"without-{score}", tuple(o for o in SCORES if o != score), base) for score in SCORES]
    return [*alone, *left_out]


ABLATIONS: dict[str, Strategy] = {
    strategy.name: strategy for base in (ARR_COC, ARR_COC_GLANCE) for strategy in _all_of(base)
}
"""The strategies by name; asked for by name only."""
