from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc.errors import DeviceLost, NonFiniteError
from arr_coc.relevance import RelevanceRealiser, SteadyRelevance
from arr_coc.texture import TextureArray
from arr_coc.types import QueryEmbedding


def texture(seed: int = 0) -> TextureArray:
    generator = torch.Generator().manual_seed(seed)
    return TextureArray(torch.rand(13, 5, 6, generator=generator), torch.rand(5, 6, generator=generator))


def batch(array: TextureArray) -> TextureArray:
    return TextureArray(array.channels[None], array.entropy[None])


def prior() -> np.ndarray:
    maps = np.zeros((3, 5, 6), np.float32)
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


def test_what_answers_taught_moves_the_odds_of_relevance() -> None:
    torch.manual_seed(0)
    realiser, query, known = RelevanceRealiser(query_dim=8), torch.randn(1, 4, 8), torch.from_numpy(prior())[None]
    known[:, 0] += 0.1
    before, after = realiser(batch(texture()), query), realiser(batch(texture()), query, known)
    assert torch.equal(after.scores, before.scores)
    moved = torch.logit(after.relevance) - torch.logit(before.relevance)
    assert torch.allclose(moved, realiser.participation.evidence(known), atol=1e-4)
    assert moved[0, 2, 3] > 1
    assert moved[0, 0, 0] < 0


def test_nothing_is_beyond_doubt() -> None:
    dull = TextureArray(torch.zeros(1, 13, 5, 6), torch.zeros(1, 5, 6))
    realiser, known = RelevanceRealiser(), torch.from_numpy(prior())[None]
    known[:, 0] = 0
    known[:, 1, 2, 3] = 1
    relevance = realiser(dull, prior=known).relevance
    assert torch.isfinite(relevance).all()
    assert relevance[0, 2, 3] > relevance[0, 0, 0]


def test_looking_once_is_enough() -> None:
    realiser = RelevanceRealiser()
    looked = realiser.look(batch(texture()))
    assert torch.equal(realiser(batch(texture()), looked=looked).relevance, realiser(batch(texture())).relevance)


def test_hearing_once_is_enough() -> None:
    torch.manual_seed(0)
    realiser, query = RelevanceRealiser(query_dim=8), torch.randn(1, 4, 8)
    heard = realiser.participation.hear(query)
    assert heard is not None
    again = realiser(batch(texture()), query, heard=heard).relevance
    assert torch.equal(again, realiser(batch(texture()), query).relevance)
    assert RelevanceRealiser().participation.hear(query) is None


def test_steady_relevance_does_again_only_what_moved() -> None:
    steady, picture, known = SteadyRelevance(RelevanceRealiser()), texture(), prior()
    first = steady.of(picture, None)
    assert steady.of(picture, None) is first
    taught = steady.of(picture, known)
    assert taught.relevance.argmax() == 2 * 6 + 3
    assert torch.equal(taught.scores[:2], first.scores[:2])
    assert steady.of(picture, known) is taught
    assert not torch.equal(steady.of(texture(1), known).relevance, taught.relevance)


def test_learned_parts_hear_only_their_own_model() -> None:
    torch.manual_seed(0)
    steady, picture = SteadyRelevance(RelevanceRealiser(query_dim=8, trained_for="a")), texture()
    silent = steady.of(picture, None)
    steady.ask(question("b"))
    assert torch.equal(steady.of(picture, None).relevance, silent.relevance)
    steady.ask(question("a"))
    heard = steady.of(picture, None)
    assert heard.weights[2] > 0
    steady.ask(question("a", seed=1))
    assert not torch.equal(steady.of(picture, None).relevance, heard.relevance)
    assert not RelevanceRealiser().knows("")


@pytest.mark.parametrize("broken", ["channels", "entropy", "query", "prior", "weights"])
def test_what_is_not_finite_is_named(broken: str) -> None:
    realiser, picture = RelevanceRealiser(query_dim=8), batch(texture())
    query, known = torch.rand(1, 4, 8), torch.from_numpy(prior())[None]
    if broken == "weights":
        torch.nn.init.constant_(realiser.balancer.out.weight, float("nan"))
    else:
        {"channels": picture.channels, "entropy": picture.entropy, "query": query, "prior": known}[broken][0, 0] = (
            float("inf") if broken == "prior" else float("nan")
        )
    with pytest.raises(NonFiniteError, match=broken):
        realiser(picture, query, known)


def test_a_device_without_memory_is_lost_and_another_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    steady, picture = SteadyRelevance(RelevanceRealiser()), texture()

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nand much more")

    with monkeypatch.context() as patched:
        patched.setattr(RelevanceRealiser, "forward", full)
        with pytest.raises(DeviceLost, match=r"no memory is left on cpu to score frames: CUDA out of memory\.$"):
            steady.of(picture, None)
    assert steady.of(picture, None).relevance.shape == (5, 6)
