"""Scores alone and left out: the others are not in the relevance, and the model that is measured stays as it is."""

from __future__ import annotations

import pytest
import torch

from arr_coc.allocation.packets import SCORES
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import image_texture
from evaluation.errors import ChoiceError
from evaluation.strategies import ablation
from evaluation.strategies.ablation import (
    ABLATIONS,
    AmplifiedRealiser,
    NotingBalancer,
    ScaledRealiser,
    ablate_scores,
    fix_weights,
    newest_relevance,
    replace_realiser,
)
from evaluation.strategies.catalogue import strategy_named
from tests.support.evaluation import ask
from tests.support.models import tiny_qwen


@pytest.mark.parametrize("score", SCORES)
def test_one_score_alone_is_the_relevance(score: str) -> None:
    realiser = ablate_scores(tiny_qwen(), (score,)).realiser
    assert realiser is not None
    texture = image_texture(torch.rand(1, 3, 128, 160, generator=torch.Generator().manual_seed(0)))
    maps = realiser(texture)
    torch.testing.assert_close(maps.relevance, maps.scores[:, SCORES.index(score)])


def test_a_score_that_is_left_out_has_no_weight_and_the_others_keep_theirs() -> None:
    qwen = tiny_qwen()
    texture = image_texture(torch.rand(1, 3, 128, 160, generator=torch.Generator().manual_seed(1)))
    realiser = ablate_scores(qwen, ("information", "participation")).realiser
    assert realiser is not None
    weights = realiser(texture).weights[0]
    assert weights[1] == 0
    assert weights[0] == RelevanceRealiser()(texture).weights[0, 0]
    assert qwen.realiser is None


def test_fixed_weights_are_those_of_every_picture() -> None:
    realiser = fix_weights(tiny_qwen(), torch.tensor([0.5, 0.25, 1.0])).realiser
    assert realiser is not None
    pictures = torch.rand(2, 3, 128, 160, generator=torch.Generator().manual_seed(2))
    pictures[1] *= 0.1
    assert realiser(image_texture(pictures)).weights.tolist() == [[0.5, 0.25, 0.0]] * 2, "no question, no participation"
    prior = torch.full((2, 3, 4, 5), 0.5)
    assert realiser(image_texture(pictures), prior=prior).weights[:, 2].gt(0).all()


def test_mean_weights_are_those_of_pictures_with_participation() -> None:
    noting = NotingBalancer(RelevanceRealiser().balancer)
    maps = torch.rand(3, 3, 4, 5, generator=torch.Generator().manual_seed(3))
    weights = noting(maps, torch.zeros(3))
    torch.testing.assert_close(noting.mean(), weights.mean(dim=0))
    torch.testing.assert_close(noting(maps[:1], torch.ones(1))[0], noting.mean())


def test_amplified_scores_raise_each_other_and_scaled_ones_are_not_divided() -> None:
    maps = torch.tensor([0.5, 0.4, 0.2]).reshape(1, 3, 1, 1)
    weights = torch.tensor([[1.0, 0.5, 0.0]])
    assert AmplifiedRealiser().balance(maps, weights).item() == pytest.approx(1 - 0.5 * 0.8)
    assert ScaledRealiser().balance(maps, weights).item() == pytest.approx(0.5 + 0.2)
    assert ScaledRealiser().balance(2 * maps, weights).item() == 1
    realiser = replace_realiser(tiny_qwen(), ScaledRealiser).realiser
    assert type(realiser) is ScaledRealiser


def test_an_adaptive_budget_follows_the_worth_of_relevance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "OTHER_CLIPS", 3)
    qwen, query = tiny_qwen(), ask("40%")
    others = [newest_relevance(qwen, other, False).max() for other in ablation.other_asks(query)]
    assert len(others) == 3

    def answered(worth: float) -> int:
        strategy = ablation._adaptive("made", ablation.ARR_COC, RelevanceRealiser, lambda relevance: worths.pop(0))
        worths = [worth, 0.5, 0.6, 0.7]
        return strategy.answer(qwen, query).tokens

    assert [answered(worth) for worth in (0.0, 0.6, 1.2)] == [7, 14, 21]


@pytest.mark.parametrize("name", ABLATIONS)
def test_each_answers_within_its_budget(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "OTHER_CLIPS", 2)
    reply = strategy_named(name).answer(tiny_qwen(), ask("40%"))
    assert 0 < reply.tokens <= 14


def test_an_unknown_name_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(ChoiceError, match="arr-coc-without-perspective"):
        strategy_named("arr-coc-without-taste")
