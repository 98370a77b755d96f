"""None"""

from __future__ import annotations

import pytest
import torch

from arr_coc.errors import OptionError
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import TextureArray
from arr_coc.relevance.knowing import (
    InformationScorer,
    ParticipatoryScorer,
    PerspectivalScorer,
    QueryAttention,
    QueryCrossAttention,
    centre_surround_saliency,
)
from arr_coc.relevance.profiles import SALIENCY


@pytest.fixture
def texture() -> TextureArray:
    generator = torch.Generator().manual_seed(0)
    channels = torch.rand(2, 13, 7, 9, generator=generator)
    channels[:, SALIENCY] *= torch.rand(2, 1, 7, 9, generator=generator)
    entropy = torch.rand(2, 7, 9, generator=generator)
    entropy[:, 0] = 0
    return TextureArray(channels, entropy)


def test_information_is_entropy_until_trained(texture: TextureArray) -> None:
    score = InformationScorer()(texture)
    assert torch.allclose(score, texture.entropy, atol=0.01)


def test_a_flat_tile_scores_nothing_whatever_was_learned(texture: TextureArray) -> None:
    torch.manual_seed(1)
    scorer = InformationScorer()
    torch.nn.init.normal_(scorer.gate.weight, std=5)
    score = scorer(texture)
    assert not score[:, 0].any()
    assert (score <= texture.entropy).all()
    assert not torch.allclose(score, texture.entropy, atol=0.05)


def test_perspective_is_centre_surround_saliency_until_trained(texture: TextureArray) -> None:
    score = PerspectivalScorer()(texture)
    assert (score - centre_surround_saliency(texture.channels)).abs().max() < 0.02


def test_every_layer_of_perspective_can_learn(texture: TextureArray) -> None:
    scorer = PerspectivalScorer()
    scorer(texture).sum().backward()
    for name, parameter in scorer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
    assert scorer.narrow.weight.grad is not None
    assert scorer.narrow.weight.grad[:, 16:].any()


def test_participation_without_weights_or_feedback_is_silent(texture: TextureArray) -> None:
    score, trust = ParticipatoryScorer()(texture)
    assert not score.any()
    assert trust.tolist() == [0, 0]
    score, trust = ParticipatoryScorer()(texture, query=torch.rand(2, 5, 8))
    assert not score.any()


def test_participation_recalls_what_was_fed_back(texture: TextureArray) -> None:
    prior = torch.zeros(2, 3, 7, 9)
    prior[:, 2] = 0.8
    prior[:, 0, 3, 4] = 1
    score, trust = ParticipatoryScorer()(texture, prior=prior)
    assert (score.flatten(1).argmax(dim=1) == 3 * 9 + 4).all()
    assert trust.tolist() == pytest.approx([0.8, 0.8])
    assert ((score >= 0) & (score <= 1)).all()


def test_tiles_without_feedback_are_neither_praised_nor_blamed(texture: TextureArray) -> None:
    prior = torch.zeros(1, 3, 7, 9)
    prior[0, 2, :3] = 1
    prior[0, 0, 0] = 0.9
    score, _ = ParticipatoryScorer()(texture, prior=prior)
    share = 1 / (1 + torch.exp(torch.tensor(-1.0))).item()
    assert score[0, 5].tolist() == pytest.approx([share * 0.9 / 3] * 9)
    assert score[0, 0, 0] > score[0, 5, 0] > score[0, 2, 0]


SCORERS = pytest.mark.parametrize("name", ["film", "cross"])


@SCORERS
def test_learned_participation_listens_to_the_question(name: str, texture: TextureArray) -> None:
    torch.manual_seed(0)
    scorer = ParticipatoryScorer(query_dim=8, scorer=name)
    for parameter in scorer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    first, trust = scorer(texture, query=torch.randn(2, 5, 8))
    second, _ = scorer(texture, query=torch.randn(2, 3, 8))
    assert trust.tolist() == [1, 1]
    assert ((first > 0) & (first < 1)).all()
    assert not torch.allclose(first, second, atol=0.01)
    first.sum().backward()
    assert all(p.grad is not None for name, p in scorer.named_parameters() if name != "recall")


@SCORERS
def test_rows_of_zeros_are_no_words(name: str, texture: TextureArray) -> None:
    torch.manual_seed(0)
    scorer, query = ParticipatoryScorer(query_dim=8, scorer=name), torch.randn(2, 5, 8)
    for parameter in scorer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    padded = torch.cat([query, torch.zeros(2, 4, 8)], dim=1)
    expected, _ = scorer(texture, query=query)
    assert torch.allclose(scorer(texture, query=padded)[0], expected, atol=1e-6)
    wordless, _ = scorer(texture, query=torch.zeros(2, 0, 8))
    assert torch.isfinite(wordless).all()
    assert torch.allclose(scorer(texture, query=torch.zeros(2, 3, 8))[0], wordless, atol=1e-6)


@pytest.mark.parametrize("column", range(3))
def test_likenesses_to_words_are_pooled_by_their_maximum_mean_and_sum(column: int) -> None:
    torch.manual_seed(0)
    scorer, hidden = QueryCrossAttention(8), torch.rand(1, 32, 5)
    with torch.no_grad():
        scorer.pooling.fill_(-1e4)[:, column] = 0.0
    words = [torch.randn(1, 1, 8) for _ in range(4)]
    scorer.words.weight.data[..., 0] = scorer.words.weight.data[..., 2] = 0  # each word is read without its neighbours
    singles = torch.stack([scorer.likeness(hidden, scorer.encode_query(word)) for word in words])
    likeness = scorer.likeness(hidden, scorer.encode_query(torch.cat([*words, torch.zeros(1, 2, 8)], dim=1)))
    pooled = (singles.amax(dim=0), singles.mean(dim=0), singles.sum(dim=0))[column]
    assert torch.allclose(likeness, pooled, atol=1e-5)


@pytest.mark.parametrize("query_dim", [192, 2048])
def test_both_query_scorers_have_as_many_weights(query_dim: int) -> None:
    film, cross = (
        sum(p.numel() for p in kind(query_dim).parameters()) for kind in (QueryAttention, QueryCrossAttention)
    )
    assert cross == pytest.approx(film, rel=0.01)


def test_a_query_scorer_that_there_is_not() -> None:
    with pytest.raises(OptionError, match="unknown query scorer 'magic'; there are film, cross"):
        RelevanceRealiser(scorer="magic")


def test_a_trained_scorer_needs_no_feedback(texture: TextureArray) -> None:
    scorer, query = ParticipatoryScorer(query_dim=8), torch.randn(2, 5, 8)
    score, trust = scorer(texture, query=query, prior=torch.rand(2, 3, 7, 9))
    assert torch.equal(score, scorer(texture, query=query)[0])
    assert trust.tolist() == [1, 1]


def test_evidence_is_how_many_times_the_usual_attention_a_tile_had() -> None:
    prior = torch.zeros(2, 3, 7, 9)
    prior[:, :2] = 0.25
    prior[:, :2, 0, 0] = 0.5
    prior[:, :2, 0, 1] = 0.0
    prior[:, 2] = 1
    scorer = ParticipatoryScorer()
    usual = (61 * 0.25 + 0.5) / 63
    odds = scorer.evidence(prior).exp()
    assert odds[:, 0, 0].tolist() == pytest.approx([(0.501 / (usual + 1e-3)) ** 2] * 2, rel=1e-3)
    assert odds[:, 0, 1].tolist() == pytest.approx([(1e-3 / (usual + 1e-3)) ** 2] * 2, rel=1e-3)
    assert odds[:, 3].flatten().tolist() == pytest.approx([(0.251 / (usual + 1e-3)) ** 2] * 18, rel=1e-3)
    prior[:, 2] = 0.5
    assert scorer.evidence(prior).exp()[:, 0, 0].tolist() == pytest.approx([0.501 / (usual + 1e-3)] * 2, rel=1e-3)


def test_usual_or_absent_attention_is_no_evidence() -> None:
    scorer, prior = ParticipatoryScorer(), torch.zeros(2, 3, 7, 9)
    assert not scorer.evidence(prior).any()
    prior[:, :2, :3] = 0.7
    prior[:, 2, :3] = 1
    assert scorer.evidence(prior).abs().max() < 1e-5
