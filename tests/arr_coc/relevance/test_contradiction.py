"""Attention that contradicts what stands out."""

from __future__ import annotations

import pytest
import torch

from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import TextureArray
from arr_coc.relevance.contradiction import GLANCE_TRUST, contradiction

BRIGHT, FAINT = (1, 1), (6, 8)


def saliency() -> torch.Tensor:
    """One bright thing on a ground of little saliency: [1, 8, 10]."""
    values = torch.full((1, 8, 10), 0.05)
    values[0, 0:3, 0:3] = 0.8
    return values


def looked_at(place: tuple[int, int], trust: float = GLANCE_TRUST) -> torch.Tensor:
    """A prior [1, 3, 8, 10] of attention on one tile and, a little, on its neighbours."""
    row, col = place
    prior = torch.zeros(1, 3, 8, 10)
    prior[0, 0] = 0.05
    prior[0, 0, row - 1 : row + 2, col - 1 : col + 2] = 0.4
    prior[0, 0, row, col] = 1
    prior[0, 2] = trust
    return prior


def test_looking_away_from_what_stands_out_is_a_contradiction() -> None:
    assert contradiction(saliency(), looked_at(FAINT)).tolist() == [1.0]
    assert contradiction(saliency(), looked_at(BRIGHT)).tolist() == [0.0]


def test_looking_everywhere_alike_is_none() -> None:
    flat = looked_at(FAINT)
    flat[0, 0] = 0.5
    assert contradiction(saliency(), flat).tolist() == [pytest.approx(0, abs=1e-5)]


def test_it_fades_with_trust() -> None:
    assert contradiction(saliency(), looked_at(FAINT, GLANCE_TRUST / 2)).tolist() == [pytest.approx(0.5)]
    assert contradiction(saliency(), looked_at(FAINT, 1.0)).tolist() == [1.0]


@pytest.mark.parametrize("prior", [looked_at(FAINT, 0.0), torch.zeros(1, 3, 8, 10)])
def test_nothing_is_contradicted_if_nothing_is_known_or_stands_out(prior: torch.Tensor) -> None:
    assert contradiction(saliency(), prior).tolist() == [0.0]
    assert contradiction(torch.zeros(1, 8, 10), looked_at(FAINT)).tolist() == [0.0]


def test_frames_of_a_batch_are_judged_by_themselves() -> None:
    batch = contradiction(saliency().repeat(2, 1, 1), torch.cat([looked_at(FAINT), looked_at(BRIGHT)]))
    assert batch.tolist() == [1.0, 0.0]


def bright_and_faint() -> TextureArray:
    """As much to see in two places, of which one stands out."""
    channels, entropy = torch.zeros(1, 13, 8, 10), torch.full((1, 8, 10), 0.05)
    channels[0, 10, 0:3, 0:3] = 0.8
    entropy[0, 0:3, 0:3] = entropy[0, 5:8, 7:10] = 0.4
    return TextureArray(channels, entropy)


def test_salient_tiles_no_longer_outbid_attended_ones() -> None:
    realiser, texture = RelevanceRealiser(), bright_and_faint()
    before = realiser(texture).relevance[0]
    assert before[BRIGHT] > before[FAINT]
    contradictory = realiser(texture, prior=looked_at(FAINT))
    assert contradictory.relevance[0][FAINT] > 2 * contradictory.relevance[0][BRIGHT]
    assert contradictory.weights[0, 1] == 0, "what stands out is no guide"
    consistent = realiser(texture, prior=looked_at(BRIGHT))
    assert consistent.weights[0, 1] > 0
    assert consistent.relevance[0][BRIGHT] > before[BRIGHT]


def test_learned_parts_that_hear_the_question_know_better() -> None:
    torch.manual_seed(0)
    realiser, texture, question = RelevanceRealiser(query_dim=8), bright_and_faint(), torch.randn(1, 4, 8)
    with_question = realiser(texture, question, looked_at(FAINT))
    assert torch.equal(with_question.weights, realiser(texture, question).weights)
    without_question = realiser(texture, None, looked_at(FAINT))
    assert without_question.weights[0, 1] == 0
