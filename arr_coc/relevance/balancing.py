"""Balance of the three scores: `AdaptiveTensionBalancer`, `RelevanceRealiser`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from arr_coc.errors import NonFiniteError
from arr_coc.relevance.channels import TextureArray
from arr_coc.relevance.contradiction import contradiction
from arr_coc.relevance.embedding_axes import EmbeddingAxes
from arr_coc.relevance.knowing import (
    DEFAULT_SCORER,
    DOUBT,
    WEAK_SALIENCY,
    InformationScorer,
    ParticipatoryScorer,
    PerspectivalScorer,
    QueryWeights,
)
from arr_coc.relevance.profiles import FULL, channel_count

_STATISTICS = 6
_PEAK_GAIN = 2.0
_BEGIN_BIAS = (
    -1.0,
    0.0,
    0.5,
)  # information always counts, saliency if something stands out, the answer most


class AdaptiveTensionBalancer(nn.Module):
    """Weights for information, perspective and participation, each in [0, 1] on its own.

    Only their ratios count: relevance is divided by their sum (`RelevanceRealiser.balance`), so three high weights are
    as three low ones. A small net of the question's mean embedding and of mean and maximum of each map gives them.
    Untrained, a map counts more the more something stands out in it (maximum − mean), and the question does not matter.
    Two guards: if the strongest saliency is below `WEAK_SALIENCY`, perspective is cut in proportion, and information
    raised unless the question is used; participation counts only as far as it is trusted.
    """

    def __init__(self, query_dim: int = 0, width: int = 16) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, width, bias=False) if query_dim else None
        self.statistics = nn.Linear(_STATISTICS, width)
        self.out = nn.Linear(width, 3)
        with torch.no_grad():
            self.statistics.weight[:_STATISTICS] = torch.eye(_STATISTICS)
            self.statistics.bias[:_STATISTICS] = 0
            self.out.weight.zero_()
            for score in range(3):
                self.out.weight[score, score], self.out.weight[score, score + 3] = -_PEAK_GAIN, _PEAK_GAIN
            self.out.bias.copy_(torch.tensor(_BEGIN_BIAS))
            if self.query is not None:
                self.query.weight.zero_()

    def forward(self, scores: torch.Tensor, trust: torch.Tensor, query: torch.Tensor | None = None) -> torch.Tensor:
        """Return the weights of the scores.

        Args:
            scores: Information, perspective and participation, [B, 3, gh, gw].
            trust: Trust in participation, [B] in [0, 1].
            query: Embeddings of the question, [B, Lq, D], padded by rows of zeros; None without one.

        Returns:
            [B, 3], each in [0, 1].
        """
        flat = scores.flatten(2)
        strongest = flat.amax(dim=2)
        hidden = self.statistics(torch.cat([flat.mean(dim=2), strongest], dim=1))
        uses_query = query is not None and self.query is not None
        if query is not None and self.query is not None:
            hidden = hidden + self.pool_query(query)
        information, perspective, participation = torch.sigmoid(self.out(F.relu(hidden))).unbind(dim=1)
        strength = (strongest[:, 1] / WEAK_SALIENCY).clamp(max=1)
        if not uses_query:
            information = information + (1 - information) * (1 - strength)
        return torch.stack([information, perspective * strength, participation * trust], dim=1)

    def pool_query(self, query: torch.Tensor) -> torch.Tensor:
        """Part of a question [B, Lq, D] in the hidden units [B, width], if questions are weighed."""
        assert self.query is not None
        words = query.any(dim=2).sum(dim=1, keepdim=True).clamp(min=1)
        pooled: torch.Tensor = self.query(query.sum(dim=1) / words)
        return pooled


@dataclass(frozen=True, slots=True)
class RelevanceMaps:
    """`relevance` [B, gh, gw] in [0, 1], from `scores` [B, 3, gh, gw] (information, perspective, participation) and
    their `weights` [B, 3], its odds moved by feedback; all without B if the picture came without. `gaze` [gh, gw]: the
    factor of a picture's relevance that it was multiplied by; None if it was not (`arr_coc.relevance.gaze`)."""

    relevance: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor
    gaze: torch.Tensor | None = None


class RelevanceRealiser(nn.Module):
    """Texture (+ question, + what answers taught) → relevance.

    `query_dim` is the width of the question's embeddings that the learned parts take; 0 leaves those parts out.
    `trained_for` names the model whose embeddings they were trained on: questions embedded by another model are not
    given to them. `scorer` is the learned part of participation: "cross" or "film". `channels` is the profile of the
    texture arrays that it takes; `axes` map embeddings to channels of a profile that has them, if learned parts read
    those.
    """

    def __init__(
        self, query_dim: int = 0, trained_for: str = "", scorer: str = DEFAULT_SCORER, channels: str = "core13"
    ) -> None:
        """Raise OptionError for a scorer that there is not, ProfileError for channels that there are not."""
        super().__init__()
        self.trained_for = trained_for
        self.scorer = scorer
        self.channels = channels
        count = channel_count(channels)
        self.information = InformationScorer(count)
        self.perspective = PerspectivalScorer(count)
        self.participation = ParticipatoryScorer(count, query_dim, scorer)
        self.axes = EmbeddingAxes(query_dim) if query_dim and count == FULL else None
        self.balancer = AdaptiveTensionBalancer(query_dim=query_dim)

    def knows(self, model_id: str) -> bool:
        """Return True if the learned parts were trained on embeddings of this model."""
        return bool(self.trained_for) and self.trained_for == model_id

    def score_picture(self, texture: TextureArray) -> torch.Tensor:
        """Information and perspective, which depend on the picture alone: [B, 2, gh, gw]."""
        return torch.stack([self.information(texture), self.perspective(texture)], dim=1)

    def forward(
        self,
        texture: TextureArray,
        query: torch.Tensor | None = None,
        prior: torch.Tensor | None = None,
        picture_scores: torch.Tensor | None = None,
        query_weights: QueryWeights | None = None,
        *,
        checked: bool = True,
    ) -> RelevanceMaps:
        """Return the relevance of batched pictures.

        Args:
            texture: Channels of the pictures [B, C, gh, gw].
            query: Embeddings of the question, [B, Lq, D], padded by rows of zeros; None without one.
            prior: [B, 3, gh, gw], as ParticipatoryScorer takes it; None before the first answer.
            picture_scores: Result of `score_picture(texture)`, [B, 2, gh, gw], if known.
            query_weights: Result of `participation.encode_query(query)`, if known.
            checked: Whether the result is checked to be finite, which waits for the device.

        Raises:
            NonFiniteError: NaN or Inf in a tensor, which it names, if the result is checked.
        """
        participation, trust = self.participation(texture, query, prior, query_weights)
        if picture_scores is None:
            picture_scores = self.score_picture(texture)
        scores = torch.cat([picture_scores, participation[:, None]], dim=1)
        weights = self.balancer(scores, trust, query)
        # Doubt that what stands out is what is asked for, [B]; learned parts that read the question know better.
        hears = self.participation.asked is not None and not (query is None and query_weights is None)
        if prior is None or hears:
            doubt = None
        else:
            doubt = contradiction(picture_scores[:, 1], prior)
        if doubt is not None:
            weights = weights * torch.stack([torch.ones_like(doubt), 1 - doubt, torch.ones_like(doubt)], dim=1)
        relevance = self.balance(scores, weights)
        if prior is not None:
            evidence = self.participation.evidence(prior, doubt)
            relevance = torch.sigmoid(torch.logit(relevance, eps=DOUBT) + evidence)
        if checked and not torch.isfinite(relevance).all():
            raise NonFiniteError(_non_finite_message(texture, query, prior, scores, weights))
        return RelevanceMaps(relevance, scores, weights)

    def balance(self, scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the mean of the maps [B, 3, gh, gw] by their weights [B, 3]: [B, gh, gw] in [0, 1], 0 if no weight is
        above 0."""
        return torch.einsum("bshw,bs->bhw", scores, weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-6))


def _non_finite_message(
    texture: TextureArray,
    query: torch.Tensor | None,
    prior: torch.Tensor | None,
    scores: torch.Tensor,
    weights: torch.Tensor,
) -> str:
    tensors = {
        "the texture array's channels": texture.channels,
        "the texture array's entropy": texture.entropy,
        "the query's embeddings": query,
        "the prior from feedback": prior,
        "the information score": scores[:, 0],
        "the perspectival score": scores[:, 1],
        "the participatory score": scores[:, 2],
        "the balancing weights": weights,
    }
    broken = (name for name, tensor in tensors.items() if tensor is not None and not torch.isfinite(tensor).all())
    return f"{next(broken, 'relevance')} holds NaN or Inf"
