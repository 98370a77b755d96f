"""PyramidDrop: the language model in four stages, after each of which the same share of visual tokens is dropped.

Xing et al. 2024, "PyramidDrop: Accelerating Your Large Vision-Language Models via Pyramid Visual Redundancy Reduction"
(arXiv:2410.17247): equal stages, tokens ranked by the attention of the instruction's last token at the end of a stage.
The share that is kept each time is the one that leaves the budget to the last stage; encoder and first stage see
everything.
"""

from __future__ import annotations

from collections.abc import Mapping

from evaluation.strategies.after_encoder import AfterEncoder
from evaluation.strategies.base import Strategy

STAGES = 4


def schedule(layers: int, tokens: int, budget: int) -> Mapping[int, int]:
    """Three cuts at quarters of the depth, geometrically down to the budget."""
    if budget >= tokens:
        return {}
    cuts = STAGES - 1
    first_layers = (max(1, round(stage * layers / STAGES)) for stage in range(1, STAGES))
    return {
        layer: max(budget, round(tokens * (budget / tokens) ** (stage / cuts)))
        for stage, layer in enumerate(first_layers, 1)
        if layer < layers
    }


PYRAMIDDROP = Strategy("pyramiddrop", AfterEncoder(schedule=schedule), encodes=("prune",))
