"""Relevance realised: three ways of knowing, balanced into one map."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from arr_coc.balancing import AdaptiveTensionBalancer, weighted
from arr_coc.errors import NonFiniteError
from arr_coc.knowing import InformationScorer, ParticipatoryScorer, PerspectivalScorer
from arr_coc.texture import TextureArray


@dataclass(frozen=True, slots=True)
class Realised:
    """`relevance` [B, gh, gw] in [0, 1], from `scores` [B, 3, gh, gw] (information, perspective, participation) and
    their `weights` [B, 3]."""

    relevance: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor


class RelevanceRealiser(nn.Module):
    """Texture (+ question, + what answers taught) → relevance.

    `query_dim` is the width of the question's embeddings that the learned parts take; 0 leaves those parts out. `trained_for`
    names the model whose embeddings they were trained on: questions embedded by another model are not given to them.
    """

    def __init__(self, query_dim: int = 0, trained_for: str = "") -> None:
        super().__init__()
        self.trained_for = trained_for
        self.information = InformationScorer()
        self.perspective = PerspectivalScorer()
        self.participation = ParticipatoryScorer(query_dim=query_dim)
        self.balancer = AdaptiveTensionBalancer(query_dim=query_dim)

    def knows(self, model_id: str) -> bool:
        """Whether the learned parts were trained on embeddings of this model."""
        return bool(self.trained_for) and self.trained_for == model_id

    def look(self, texture: TextureArray) -> torch.Tensor:
        """Information and perspective, which depend on the picture alone: [B, 2, gh, gw]."""
        return torch.stack([self.information(texture), self.perspective(texture)], dim=1)

    def forward(
        self,
        texture: TextureArray,
        query: torch.Tensor | None = None,
        prior: torch.Tensor | None = None,
        looked: torch.Tensor | None = None,
    ) -> Realised:
        """Batched `texture`; `query` [B, Lq, D]; `prior` [B, 3, gh, gw] as ParticipatoryScorer takes it.

        `looked` saves computing `look(texture)` again. Raises NonFiniteError, naming the tensor.
        """
        participation, trust = self.participation(texture, query, prior)
        seen = self.look(texture) if looked is None else looked
        scores = torch.cat([seen, participation[:, None]], dim=1)
        weights = self.balancer(scores, trust, query)
        relevance = weighted(scores, weights)
        if not torch.isfinite(relevance).all():
            raise NonFiniteError(_first_broken(texture, query, prior, scores, weights))
        return Realised(relevance, scores, weights)


def _first_broken(
    texture: TextureArray,
    query: torch.Tensor | None,
    prior: torch.Tensor | None,
    scores: torch.Tensor,
    weights: torch.Tensor,
) -> str:
    named = {
        "the texture array's channels": texture.channels,
        "the texture array's entropy": texture.entropy,
        "the query's embeddings": query,
        "the prior from feedback": prior,
        "the information score": scores[:, 0],
        "the perspectival score": scores[:, 1],
        "the participatory score": scores[:, 2],
        "the balancing weights": weights,
    }
    broken = (name for name, tensor in named.items() if tensor is not None and not torch.isfinite(tensor).all())
    return f"{next(broken, 'relevance')} holds NaN or Inf"
