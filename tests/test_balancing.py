from __future__ import annotations

import pytest
import torch

from arr_coc.attending import Tensions
from arr_coc.balancing import AdaptiveTensionBalancer, weighted


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
    none = balancer(scores(), torch.zeros(1))[0]
    assert half[2] == full[2] / 2
    assert none[2] == 0
    assert torch.isfinite(weighted(scores(), none[None])).all()


def test_weak_saliency_raises_information() -> None:
    balancer = AdaptiveTensionBalancer()
    strong, weak, none = (balancer(scores(saliency=height), torch.zeros(1))[0] for height in (0.3, 0.15, 0.1))
    assert weak[1] < 0.55 * strong[1]
    assert weak[0] > strong[0]
    assert none[1] < weak[1]
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
    assert torch.allclose(weighted(maps, same), maps.mean(dim=1))
    only_first = torch.tensor([[0.2, 0.0, 0.0], [0.2, 0.0, 0.0]])
    assert torch.allclose(weighted(maps, only_first), maps[:, 0])


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_knobs_are_shares(share: float) -> None:
    with pytest.raises(ValueError, match="explore is a share"):
        Tensions(explore=share)
    with pytest.raises(ValueError, match="coverage is a share"):
        Tensions(coverage=share)
