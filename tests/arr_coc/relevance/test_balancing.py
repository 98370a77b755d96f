""""""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc.allocation.attending import Tensions
from arr_coc.errors import DeviceLost, NonFiniteError
from arr_coc.relevance.balancing import AdaptiveTensionBalancer, RelevanceRealiser
from arr_coc.relevance.cached_relevance import CachedRelevance
from arr_coc.relevance.channels import TextureArray
from arr_coc.texture.kernels import SETTING
from arr_coc.types import QueryEmbedding


def scores(information: float = 0.5, saliency: float = 0.8, attention: float = 0.9) -> torch.Tensor:
    """Three maps on 4×5 tiles, each with one tile at the given height over a ground of 0.1."""
    maps = torch.full((1, 3, 4, 5), 0.1)
    maps[0, :, 1, 2] = torch.tensor([information, saliency, attention])
    return maps


def test_untrained_weights_are_sensible() -> None:
    balancer = AdaptiveTensionBalancer()
    (weights,) = balancer(scores(), torch.ones(1)).tolist()
    assert all(0 < weight <= 1 for weight in weights)
    assert weights[2] > weights[1] > weights[0]
    assert sum(weights) > 1.5


def test_participation_counts_as_far_as_it_is_trusted() -> None:
    balancer = AdaptiveTensionBalancer()
    full = balancer(scores(), torch.ones(1))[0]
    half = balancer(scores(), torch.full((1,), 0.5))[0]
    zero = balancer(scores(), torch.zeros(1))[0]
    assert half[2] == full[2] / 2
    assert zero[2] == 0
    assert torch.isfinite(RelevanceRealiser().balance(scores(), zero[None])).all()


def test_weak_saliency_raises_information() -> None:
    balancer = AdaptiveTensionBalancer()
    strong, weak, faint = (balancer(scores(saliency=height), torch.zeros(1))[0] for height in (0.3, 0.15, 0.1))
    assert weak[1] < 0.55 * strong[1]
    assert weak[0] > strong[0]
    assert faint[1] < weak[1]
    flat = balancer(torch.zeros(1, 3, 4, 5), torch.zeros(1))[0]
    assert flat.tolist() == [1, 0, 0]


def test_other_pictures_get_other_weights_for_the_same_question() -> None:
    balancer, query = AdaptiveTensionBalancer(query_dim=6), torch.randn(1, 4, 6)
    first = balancer(scores(), torch.ones(1), query)
    second = balancer(scores(information=0.9, attention=0.3), torch.ones(1), query)
    assert (first - second).abs().max() > 0.05


def test_the_question_matters_once_learned() -> None:
    balancer = AdaptiveTensionBalancer(query_dim=6)
    query = torch.randn(1, 4, 6)
    assert torch.equal(balancer(scores(), torch.ones(1), query), balancer(scores(), torch.ones(1)))
    balancer(scores(), torch.ones(1), query).sum().backward()
    assert balancer.query is not None
    assert balancer.query.weight.grad is not None
    assert balancer.query.weight.grad.any()
    torch.nn.init.normal_(balancer.query.weight)
    padded = torch.cat([query, torch.zeros(1, 3, 6)], dim=1)
    assert torch.allclose(balancer(scores(), torch.ones(1), padded), balancer(scores(), torch.ones(1), query))
    assert torch.isfinite(balancer(scores(), torch.ones(1), query[:, :0])).all()
    assert not torch.equal(balancer(scores(), torch.ones(1), query), balancer(scores(), torch.ones(1)))


def test_the_sum_is_a_mean() -> None:
    maps = torch.rand(2, 3, 4, 5)
    same = torch.full((2, 3), 0.7)
    assert torch.allclose(RelevanceRealiser().balance(maps, same), maps.mean(dim=1))
    only_first = torch.tensor([[0.2, 0.0, 0.0], [0.2, 0.0, 0.0]])
    assert torch.allclose(RelevanceRealiser().balance(maps, only_first), maps[:, 0])


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_knobs_are_shares(share: float) -> None:
    with pytest.raises(ValueError, match="explore is a share"):
        Tensions(explore=share)
    with pytest.raises(ValueError, match="coverage is a share"):
        Tensions(coverage=share)


def texture(seed: int = 0) -> TextureArray:
    generator = torch.Generator().manual_seed(seed)
    return TextureArray(torch.rand(13, 5, 6, generator=generator), torch.rand(5, 6, generator=generator))


def batch(array: TextureArray) -> TextureArray:
    return TextureArray(array.channels[None], array.entropy[None])


def prior() -> torch.Tensor:
    maps = torch.zeros(3, 5, 6)
    maps[0, 2, 3] = 1
    maps[2] = 1
    return maps


def question(model_id: str, seed: int = 0) -> QueryEmbedding:
    tokens = np.random.default_rng(seed).normal(size=(4, 8)).astype(np.float32)
    return QueryEmbedding("where?", tokens, model_id)


def test_relevance_lies_between_the_scores() -> None:
    realised = RelevanceRealiser()(batch(texture()))
    assert realised.relevance.shape == (1, 5, 6)
    assert (realised.relevance <= realised.scores.amax(dim=1) + 1e-6).all()
    assert (realised.relevance >= realised.scores.amin(dim=1) - 1e-6).all()


def test_feedback_moves_the_odds_of_relevance() -> None:
    torch.manual_seed(0)
    realiser, query, feedback = RelevanceRealiser(query_dim=8), torch.randn(1, 4, 8), prior()[None]
    feedback[:, 0] += 0.1
    before, after = realiser(batch(texture()), query), realiser(batch(texture()), query, feedback)
    assert torch.equal(after.scores, before.scores)
    difference = torch.logit(after.relevance) - torch.logit(before.relevance)
    assert torch.allclose(difference, realiser.participation.evidence(feedback), atol=1e-4)
    assert difference[0, 2, 3] > 1
    assert difference[0, 0, 0] < 0


def test_nothing_is_beyond_doubt() -> None:
    dull = TextureArray(torch.zeros(1, 13, 5, 6), torch.zeros(1, 5, 6))
    realiser, feedback = RelevanceRealiser(), prior()[None]
    feedback[:, 0] = 0
    feedback[:, 1, 2, 3] = 1
    relevance = realiser(dull, prior=feedback).relevance
    assert torch.isfinite(relevance).all()
    assert relevance[0, 2, 3] > relevance[0, 0, 0]


def test_looking_once_is_enough() -> None:
    realiser = RelevanceRealiser()
    picture_scores = realiser.score_picture(batch(texture()))
    assert torch.equal(
        realiser(batch(texture()), picture_scores=picture_scores).relevance, realiser(batch(texture())).relevance
    )


@pytest.mark.parametrize("scorer", ["film", "cross"])
def test_hearing_once_is_enough(scorer: str) -> None:
    torch.manual_seed(0)
    realiser, query = RelevanceRealiser(query_dim=8, scorer=scorer), torch.randn(1, 4, 8)
    query_weights = realiser.participation.encode_query(query)
    assert query_weights is not None
    second = realiser(batch(texture()), query, query_weights=query_weights).relevance
    assert torch.equal(second, realiser(batch(texture()), query).relevance)
    assert RelevanceRealiser().participation.encode_query(query) is None


def test_steady_relevance_does_again_only_what_moved() -> None:
    steady, picture, feedback = CachedRelevance(RelevanceRealiser()), texture(), prior()
    first = steady.compute(picture, None)
    assert steady.compute(picture, None) is first
    taught = steady.compute(picture, feedback)
    assert taught.relevance.argmax() == 2 * 6 + 3
    assert torch.equal(taught.scores[:2], first.scores[:2])
    assert steady.compute(picture, feedback) is taught
    assert not torch.equal(steady.compute(texture(1), feedback).relevance, taught.relevance)


def test_learned_parts_hear_only_their_own_model() -> None:
    torch.manual_seed(0)
    steady, picture = CachedRelevance(RelevanceRealiser(query_dim=8, trained_for="a")), texture()
    silent = steady.compute(picture, None)
    steady.set_query(question("b"))
    assert torch.equal(steady.compute(picture, None).relevance, silent.relevance)
    steady.set_query(question("a"))
    answer = steady.compute(picture, None)
    assert answer.weights[2] > 0
    steady.set_query(question("a", seed=1))
    assert not torch.equal(steady.compute(picture, None).relevance, answer.relevance)
    assert not RelevanceRealiser().knows("")


@pytest.mark.parametrize("broken", ["channels", "entropy", "query", "prior", "weights"])
def test_values_that_are_not_finite_are_named(broken: str) -> None:
    realiser, picture = RelevanceRealiser(query_dim=8), batch(texture())
    query, feedback = torch.rand(1, 4, 8), prior()[None]
    if broken == "weights":
        torch.nn.init.constant_(realiser.balancer.out.weight, float("nan"))
    else:
        {"channels": picture.channels, "entropy": picture.entropy, "query": query, "prior": feedback}[broken][0, 0] = (
            float("inf") if broken == "prior" else float("nan")
        )
    with pytest.raises(NonFiniteError, match=broken):
        realiser(picture, query, feedback)


def test_a_device_without_memory_is_lost_and_another_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "reference")
    steady, picture = CachedRelevance(RelevanceRealiser()), texture()

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nand much more")

    with monkeypatch.context() as patched:
        patched.setattr(RelevanceRealiser, "forward", full)
        with pytest.raises(DeviceLost, match=r"no memory is left on cpu to score frames: CUDA out of memory\.$"):
            steady.compute(picture, None)
    assert steady.compute(picture, None).relevance.shape == (5, 6)
