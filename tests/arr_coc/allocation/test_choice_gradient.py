"""Gradients of a choice, and choices by chance."""

from __future__ import annotations

import pytest
import torch

from arr_coc.allocation.attending import allocate
from arr_coc.allocation.choice_gradient import add_gumbel_noise, log_shares, logit, straight_through, token_of_tiles


def test_a_token_s_share_is_the_mean_over_its_tiles() -> None:
    relevance = torch.rand(2, 6, 7, generator=torch.Generator().manual_seed(0))
    allocation = allocate(relevance, 12, "foveated")
    token_of = token_of_tiles(allocation, (6, 7))
    assert token_of.shape == (2, 42)
    shares = log_shares(relevance, token_of, allocation.mask.shape[1], 1.0).exp()
    softmax = logit(relevance).flatten(1).softmax(dim=1).unflatten(1, (6, 7))
    for picture, (regions, mask) in enumerate(zip(allocation.regions, allocation.mask, strict=True)):
        for token, (level, row, col) in enumerate(regions[mask].tolist()):
            side = 1 << level
            tiles = softmax[picture, row * side : (row + 1) * side, col * side : (col + 1) * side]
            assert shares[picture, token] == pytest.approx(float(tiles.mean()), rel=1e-4)


def test_a_tile_without_a_token_is_marked() -> None:
    allocation = allocate(torch.rand(1, 4, 5), 3, "topk")
    token_of = token_of_tiles(allocation, (4, 5))
    assert token_of[0].bincount(minlength=4).tolist() == [1, 1, 1, 17]


def test_a_helpful_tile_rises_at_the_expense_of_the_others() -> None:
    relevance = torch.full((1, 3, 3), 0.5, requires_grad=True)
    allocation = allocate(relevance, 2, "grid")
    token_of = token_of_tiles(allocation, (3, 3))
    presence = straight_through(log_shares(relevance, token_of, 2, 1.0))
    assert not presence.any()
    presence[0, 0].backward()
    assert relevance.grad is not None
    gradient, helped = relevance.grad.flatten(), token_of[0] == 0
    assert gradient[helped] > 0
    assert (gradient[~helped] < 0).all()
    assert float(gradient.sum()) == pytest.approx(0, abs=1e-5)


def test_chance_draws_by_shares_and_a_low_temperature_leaves_less_to_it() -> None:
    relevance = torch.full((1, 5, 8), 0.2)
    relevance[0, :, 3] = 0.9
    torch.manual_seed(2)

    def hits(temperature: float) -> float:
        draws = (add_gumbel_noise(relevance, temperature)[0].flatten().topk(5).indices for _ in range(200))
        return sum(float((tiles % 8 == 3).float().mean()) for tiles in draws) / 200

    fair, certainty = hits(1.0), hits(0.05)
    assert 0.3 < fair < 0.95
    assert certainty > 0.99
    assert hits(50.0) < 0.25


def test_chance_repeats_with_its_seed() -> None:
    relevance = torch.rand(1, 4, 4)
    torch.manual_seed(3)
    first = add_gumbel_noise(relevance, 1.0)
    torch.manual_seed(3)
    assert torch.equal(add_gumbel_noise(relevance, 1.0), first)
    assert bool(((first >= 0) & (first <= 1)).all())
