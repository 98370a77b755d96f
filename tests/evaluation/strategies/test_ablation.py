"""Scores alone and left out: the others are not in the relevance, and the model that is measured stays as it is."""

from __future__ import annotations

import pytest
import torch

from arr_coc.allocation.packets import SCORES
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import image_texture
from evaluation.errors import ChoiceError
from evaluation.strategies.ablation import ABLATIONS, ablated
from evaluation.strategies.catalogue import strategy_named
from tests.support.evaluation import ask
from tests.support.models import tiny_qwen


@pytest.mark.parametrize("score", SCORES)
def test_one_score_alone_is_the_relevance(score: str) -> None:
    realiser = ablated(tiny_qwen(), (score,)).realiser
    assert realiser is not None
    texture = image_texture(torch.rand(1, 3, 128, 160, generator=torch.Generator().manual_seed(0)))
    maps = realiser(texture)
    torch.testing.assert_close(maps.relevance, maps.scores[:, SCORES.index(score)])


def test_a_score_that_is_left_out_has_no_weight_and_the_others_keep_theirs() -> None:
    qwen = tiny_qwen()
    texture = image_texture(torch.rand(1, 3, 128, 160, generator=torch.Generator().manual_seed(1)))
    realiser = ablated(qwen, ("information", "participation")).realiser
    assert realiser is not None
    weights = realiser(texture).weights[0]
    assert weights[1] == 0
    assert weights[0] == RelevanceRealiser()(texture).weights[0, 0]
    assert qwen.realiser is None


@pytest.mark.parametrize("name", ABLATIONS)
def test_each_answers_within_its_budget(name: str) -> None:
    reply = strategy_named(name).answer(tiny_qwen(), ask("40%"))
    assert 0 < reply.tokens <= 14


def test_an_unknown_name_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(ChoiceError, match="arr-coc-without-perspective"):
        strategy_named("arr-coc-without-taste")
