"""Relevance for several questions: one keeps its own, and of several none starves."""

from __future__ import annotations

import pytest
import torch

from arr_coc.relevance.balancing import RelevanceMaps
from arr_coc.relevance.union import united_relevance

SHAPE = (12, 20)


def maps_of(seed: int, scale: float = 1.0) -> RelevanceMaps:
    generator = torch.Generator().manual_seed(seed)
    relevance, scores = (torch.rand(*shape, generator=generator) for shape in (SHAPE, (3, *SHAPE)))
    return RelevanceMaps(scale * relevance, scores, torch.rand(3, generator=generator))


def first(relevance: torch.Tensor, count: int) -> set[int]:
    return set(relevance.flatten().argsort(descending=True, stable=True)[:count].tolist())


def test_one_question_keeps_its_relevance() -> None:
    maps = maps_of(1)
    assert united_relevance([maps]) is maps


def test_the_same_question_twice_is_that_question() -> None:
    maps = maps_of(1)
    twice = united_relevance([maps, maps])
    assert torch.equal(twice.relevance, maps.relevance)
    assert torch.equal(twice.scores, maps.scores)


@pytest.mark.parametrize("questions", [2, 4, 8])
@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_each_question_has_its_share_whatever_its_scale(questions: int, scale: float) -> None:
    maps = [maps_of(seed, scale if seed else 1.0) for seed in range(questions)]
    united = united_relevance(maps).relevance
    for share in (1, 3, 10):
        united_tiles = first(united, questions * share)
        assert all(first(question_maps.relevance, share) <= united_tiles for question_maps in maps)


def test_tiles_that_two_questions_ask_for_count_once() -> None:
    maps, other_maps = maps_of(1), maps_of(2)
    united = united_relevance([maps, maps, other_maps]).relevance
    assert first(united, 20) >= first(maps.relevance, 10) | first(other_maps.relevance, 10)


def test_values_stay_those_of_relevance_and_scores_are_the_largest() -> None:
    maps, other_maps = maps_of(1), maps_of(2)
    united = united_relevance([maps, other_maps])
    assert united.relevance.shape == SHAPE
    assert 0 <= united.relevance.min() <= united.relevance.max() <= 1
    assert united.relevance.max() == (maps.relevance.max() + other_maps.relevance.max()) / 2
    assert torch.equal(united.scores, torch.maximum(maps.scores, other_maps.scores))
    assert torch.allclose(united.weights, (maps.weights + other_maps.weights) / 2)
