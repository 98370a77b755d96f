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
    alone = maps_of(1)
    assert united_relevance([alone]) is alone


def test_the_same_question_twice_is_that_question() -> None:
    alone = maps_of(1)
    twice = united_relevance([alone, alone])
    assert torch.equal(twice.relevance, alone.relevance)
    assert torch.equal(twice.scores, alone.scores)


@pytest.mark.parametrize("questions", [2, 4, 8])
@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_each_question_has_its_share_whatever_its_scale(questions: int, scale: float) -> None:
    maps = [maps_of(seed, scale if seed else 1.0) for seed in range(questions)]
    united = united_relevance(maps).relevance
    for share in (1, 3, 10):
        shown = first(united, questions * share)
        assert all(first(one.relevance, share) <= shown for one in maps)


def test_tiles_that_two_questions_ask_for_count_once() -> None:
    one, other = maps_of(1), maps_of(2)
    united = united_relevance([one, one, other]).relevance
    assert first(united, 20) >= first(one.relevance, 10) | first(other.relevance, 10)


def test_values_stay_those_of_relevance_and_scores_are_the_largest() -> None:
    one, other = maps_of(1), maps_of(2)
    united = united_relevance([one, other])
    assert united.relevance.shape == SHAPE
    assert 0 <= united.relevance.min() <= united.relevance.max() <= 1
    assert united.relevance.max() == (one.relevance.max() + other.relevance.max()) / 2
    assert torch.equal(united.scores, torch.maximum(one.scores, other.scores))
    assert torch.allclose(united.weights, (one.weights + other.weights) / 2)
