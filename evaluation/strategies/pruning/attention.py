"""FastV and PyramidDrop: tokens that the prompt's last token attends to most, inside the language model.

Chen et al. 2024, "An Image is Worth 1/2 Tokens After Layer 2: Plug-and-Play Inference Acceleration for Large
Vision-Language Models" (arXiv:2403.06764), with the paper's K = 2. The budget is the number left after the cut; encoder
and first two layers see everything.

Xing et al. 2024, "PyramidDrop: Accelerating Your Large Vision-Language Models via Pyramid Visual Redundancy Reduction"
(arXiv:2410.17247): equal stages, tokens ranked by the attention of the instruction's last token at the end of a stage.
The share that is kept each time is the one that leaves the budget to the last stage; encoder and first stage see
everything.

Both rank the tokens of all frames together, by the attention in the layer before the cut, averaged over heads.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from evaluation.strategies.pruning.base import Pruner
from evaluation.strategies.pruning.staged import Candidates

CUT_AFTER = 2
STAGES = 4


class FastV(Pruner):
    """One cut, after `CUT_AFTER` layers; none in a model that has no more."""

    name = "fastv"

    def schedule(self, layers: int, tokens: int, budget: int) -> Mapping[int, int]:
        return {CUT_AFTER: budget}

    def choose(self, candidates: Candidates, count: int) -> torch.Tensor:
        return candidates.attention().topk(count).indices


class PyramidDrop(FastV):
    """Three cuts at quarters of the depth, geometrically down to the budget."""

    name = "pyramiddrop"

    def schedule(self, layers: int, tokens: int, budget: int) -> Mapping[int, int]:
        cuts = STAGES - 1
        return {
            max(1, round(stage * layers / STAGES)): max(budget, round(tokens * (budget / tokens) ** (stage / cuts)))
            for stage in range(1, STAGES)
        }
