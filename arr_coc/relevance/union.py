"""Relevance for several questions about one picture: each gets an equal share of what is shown first."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from arr_coc.relevance.balancing import RelevanceMaps
from arr_coc.relevance.cached_relevance import CachedRelevance
from arr_coc.relevance.channels import TextureArray


def united_relevance(maps: Sequence[RelevanceMaps]) -> RelevanceMaps:
    """Return the relevance of one picture for any of several questions, whose maps come without a batch axis.

    A tile has the best of its ranks among the questions, and the mean of the relevance that questions give to that
    rank: of n questions each has its k first tiles among the n · k first of all, whatever the scale of its relevance,
    and a tile that several ask for counts once. Of one question it is the relevance itself. `scores` are the largest,
    `weights` the mean.
    """
    first, *others = maps
    if not others:
        return first
    relevance = torch.stack([question_maps.relevance.flatten() for question_maps in maps])
    sorted_relevance, order = relevance.sort(dim=1, descending=True, stable=True)
    ranks = torch.empty_like(order)
    ranks.scatter_(1, order, torch.arange(relevance.shape[1], device=relevance.device).expand_as(order))
    united = sorted_relevance.mean(dim=0)[ranks.amin(dim=0)]
    return RelevanceMaps(
        united.view_as(first.relevance),
        torch.stack([question_maps.scores for question_maps in maps]).amax(dim=0),
        torch.stack([question_maps.weights for question_maps in maps]).mean(dim=0),
    )


class UnitedQuestions:
    """Relevance for the first of several questions and for the `others`; the same maps give the same object."""

    def __init__(self) -> None:
        self.others: list[CachedRelevance] = []
        self._cache: tuple[list[RelevanceMaps], RelevanceMaps] | None = None

    def unite(self, first: RelevanceMaps, scored: TextureArray, prior: torch.Tensor | None) -> RelevanceMaps:
        """Return the relevance of a picture for all questions.

        Args:
            first: Its relevance for the first question, without a batch axis.
            scored: Its texture array [C, gh, gw].
            prior: Attention, similarity and trust, float32 [3, gh, gw]; None before the first answer.

        Raises:
            NonFiniteError, DeviceLost: As `CachedRelevance.compute`.
        """
        maps = [first, *(other.compute(scored, prior) for other in self.others)]
        if self._cache is None or any(new is not old for new, old in zip(maps, self._cache[0], strict=True)):
            self._cache = maps, united_relevance(maps)
        return self._cache[1]
