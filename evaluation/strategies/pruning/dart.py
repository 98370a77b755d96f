"""DART: tokens that are unlike a few pivots, inside the language model.

Wen et al. 2025, "Stop Looking for Important Tokens in Multimodal Language Models: Duplication Matters More"
(arXiv:2502.11494), with the paper's cut after layer 2 and eight pivots: the four visual tokens and the four of the
question with the largest L1 norm of their keys. Each pivot in turn keeps an equal share of the tokens whose normalised
states are least similar to it. The tokens of all frames are one set; encoder and first two layers see everything.

TensorRT-Edge-LLM does the same with embeddings before the first layer, as its engine shows no states. The form of the
paper is the one that favours it here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from evaluation.strategies.pruning.attention import CUT_AFTER
from evaluation.strategies.pruning.base import Pruner
from evaluation.strategies.pruning.staged import Candidates

PIVOTS = 4
"""Of the visual tokens, and as many of the question's."""


class Dart(Pruner):
    """Least similarity to pivots, after `CUT_AFTER` layers."""

    name = "dart"

    def schedule(self, layers: int, tokens: int, budget: int) -> Mapping[int, int]:
        return {CUT_AFTER: budget}

    def choose(self, candidates: Candidates, count: int) -> torch.Tensor:
        norms = candidates.keys().abs().sum(dim=-1)
        visual_pivots = norms[candidates.visual].topk(min(PIVOTS, count)).indices
        question_pivots = norms[candidates.question].topk(min(PIVOTS, len(candidates.question))).indices
        pivots = torch.cat([candidates.visual[visual_pivots], candidates.question[question_pivots]])
        states = candidates.normalised()
        likeness = candidates.cosines(states[pivots], states[candidates.visual])
        mask = torch.zeros(len(candidates.visual), dtype=torch.bool, device=states.device)
        mask[visual_pivots] = True
        for number, row in enumerate(likeness):
            remaining = count - int(mask.sum())
            share = -(-remaining // (len(likeness) - number))
            mask[row.masked_fill(mask, torch.inf).topk(share, largest=False).indices] = True
        return mask.nonzero()[:, 0]
