"""Losses of relevance against the target of every tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.nn import functional as F

from arr_coc.allocation.choice_gradient import logit
from arr_coc.relevance.balancing import RelevanceMaps

Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Between relevance [B, gh, gw] and the target of every tile [B, gh, gw]: a scalar."""

LEAST_SHARE = 0.04
"""Least share of a tile's area that the asked thing takes for the tile to hold it."""

_LIST_WEIGHT = 0.3
_HIT_WEIGHT = 0.3
_REST_WEIGHT = 3.0
_SCORE_WEIGHTS = (0.2, 0.2, 0.5)


def box_loss(relevance: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the distance of relevance [B, gh, gw] from the tiles that hold the asked thing (`target` in [0, 1], some
    above 0).

    The cross-entropy of a softmax over the frame (ListNet: Cao et al., 2007), which ranks, and of each tile on its own,
    which keeps relevance absolute; tiles that hold it weigh as much as all others together.
    """
    scores = logit(relevance).flatten(1)
    positives = (target > LEAST_SHARE).float().flatten(1)
    count = positives.sum(dim=1).clamp(min=1)
    list_loss = -(positives * F.log_softmax(scores, dim=1)).sum(dim=1) / count
    tile_losses = F.binary_cross_entropy_with_logits(scores, positives, reduction="none")
    hit_loss = (tile_losses * positives).sum(dim=1) / count
    rest_loss = (tile_losses * (1 - positives)).mean(dim=1)
    return (_LIST_WEIGHT * list_loss + _HIT_WEIGHT * hit_loss + _REST_WEIGHT * rest_loss).mean()


LOOKED_AT = 0.2
"""A tile is looked at from this share of the largest attention in its frame on: of the bundled model's, this gives the
masks that agree best with the boxes of the asked things (`training/results/teacher.json`)."""


def attention_targets(attention: torch.Tensor) -> torch.Tensor:
    """Return the tiles that attention [..., gh, gw] selects: 1 if it is at least `LOOKED_AT` of its largest, else 0.

    Attention is spread thinly over all that is not asked about; to learn that too costs what is.
    """
    largest = attention.flatten(-2).amax(dim=-1)[..., None, None]
    return ((attention >= LOOKED_AT * largest) & (largest > 0)).to(attention.dtype)


def realised_loss(realised: RelevanceMaps, target: torch.Tensor, loss: Loss) -> torch.Tensor:
    """Return the loss of relevance, and shares of that of each score alone.

    Without these shares balancing silences the scores that learn later, which then never learn: perspective ended with
    a weight below 1e-5 and found nothing.

    Args:
        realised: Relevance and scores of B frames.
        target: Target relevance, float32 [B, gh, gw] in [0, 1].
        loss: Loss of one map, such as `box_loss`.
    """
    score_losses = (share * loss(realised.scores[:, score], target) for score, share in enumerate(_SCORE_WEIGHTS))
    return loss(realised.relevance, target) + sum(score_losses, torch.zeros((), device=target.device))
