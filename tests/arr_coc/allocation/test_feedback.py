""""""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from arr_coc.allocation.temporal import FADE_S, INFORMATION_BAND, RENEW, RENEWAL, ExplorationTracker, FeedbackPrior
from arr_coc.allocation.warping import Warp
from arr_coc.types import NS_PER_S, Feedback, FrameStamp
from tests.support.motion import moved

INFORMATION = torch.tensor([[0.2, 0.4, 0.8]])


def levels(*values: int) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.int8)


def test_at_first_information_alone_counts() -> None:
    tracker = ExplorationTracker()
    tracker.mark_shown(levels(0, 0, 0))
    assert tracker.staleness(INFORMATION).tolist() == INFORMATION.tolist()


def test_shown_tiles_wait_and_hidden_ones_gain() -> None:
    tracker = ExplorationTracker()
    tracker.staleness(INFORMATION)
    for _ in range(3):
        tracker.mark_shown(levels(1, -1, 0))
    staleness = tracker.staleness(INFORMATION)
    assert staleness.tolist() == [[4 * INFORMATION[0, 0], 4 * INFORMATION[0, 1], INFORMATION[0, 2]]]


def test_every_tile_has_its_turn() -> None:
    tracker, turns = ExplorationTracker(), set()
    for _ in range(12):
        turn = int(tracker.staleness(INFORMATION).argmax())
        turns.add(turn)
        tracker.mark_shown(levels(*(0 if tile == turn else -1 for tile in range(3))))
    assert turns == {0, 1, 2}


def test_it_turns_with_answers_and_not_with_noise() -> None:
    tracker, rng = ExplorationTracker(), np.random.default_rng(0)
    staleness = tracker.staleness(INFORMATION)
    for _ in range(20):
        noise = torch.from_numpy(rng.uniform(-0.9, 0.9, (1, 3)).astype(np.float32)) * INFORMATION_BAND
        assert tracker.staleness(INFORMATION + noise) is staleness
    assert tracker.staleness(INFORMATION + 2 * INFORMATION_BAND) is not staleness
    tracker.mark_shown(levels(0, 0, 0))
    assert tracker.staleness(INFORMATION) is not staleness


def test_it_is_carried_along() -> None:
    tracker = ExplorationTracker()
    tracker.follow(moved((1, 3), 0, 1))
    tracker.staleness(INFORMATION)
    tracker.mark_shown(levels(0, 0, 0))
    tracker.follow(moved((1, 3), 0, 1))
    assert tracker.staleness(torch.ones(1, 3)).tolist() == [[2, 1, 1]]


SHAPE = (4, 6)
LOOKS = torch.zeros(2, *SHAPE)
STILL = Warp.identity(SHAPE)


def feedback(
    regions: list[tuple[int, int, int]], attention: list[float], similarity: list[float] | None = None, at_s: float = 0
) -> Feedback:
    return Feedback(
        FrameStamp(0, round(at_s * NS_PER_S), 0, 1),
        np.array(regions, np.int32).reshape(-1, 3),
        np.array(attention, np.float32),
        np.array(similarity or [0.0] * len(attention), np.float32),
    )


def known_of(prior: FeedbackPrior, at_s: float = 0, looks: torch.Tensor = LOOKS) -> torch.Tensor:
    """Attention, similarity and trust of each tile [3, rows, cols]."""
    values = prior.evaluate(round(at_s * NS_PER_S), looks)
    assert values is not None
    return values


def test_nothing_is_known_at_first() -> None:
    prior = FeedbackPrior()
    prior.follow(moved(SHAPE, 1, 1))
    assert prior.evaluate(0, LOOKS) is None


def test_regions_speak_for_all_their_tiles() -> None:
    prior = FeedbackPrior()
    prior.update(feedback([(1, 0, 0), (0, 2, 3)], [1.0, 0.0625], [0.4, -0.9]), LOOKS, STILL)
    values = known_of(prior)
    assert values[0, :2, :2].tolist() == [[1, 1], [1, 1]]
    assert values[0, 2, 3] == 0.5
    assert values[1, 0, 0] == torch.tensor(0.4)
    assert values[1, 2, 3] == 0
    assert values[2].sum() == 5


def test_a_coarse_region_is_not_looked_at_because_it_is_large() -> None:
    prior = FeedbackPrior()
    prior.update(feedback([(2, 0, 0), (0, 0, 5), (1, 1, 2)], [1.0, 0.25, 0.25]), LOOKS, STILL)
    values = known_of(prior)
    assert values[0, 0, 5] == 1
    assert values[0, :, :4] == pytest.approx(np.sqrt(1 / 16 / 0.25))
    assert values[0, 2:, 4:] == pytest.approx(np.sqrt(1 / 4))


def test_an_answer_that_looked_at_nothing_is_no_error() -> None:
    prior = FeedbackPrior()
    prior.update(feedback([(0, 0, 0)], [0.0]), LOOKS, STILL)
    values = known_of(prior)
    assert values[0, 0, 0] == 0


def test_it_is_carried_along_prior() -> None:
    prior = FeedbackPrior()
    prior.update(feedback([(0, 1, 1)], [1.0]), LOOKS, moved(SHAPE, 1, 2))
    prior.follow(moved(SHAPE, 0, 1))
    values = known_of(prior)
    assert values[0, 2, 4] == values[2, 2, 4] == 1
    assert values[2].sum() == 1


def test_it_fades_in_steps() -> None:
    prior = FeedbackPrior()
    prior.update(feedback([(0, 1, 1)], [1.0]), LOOKS, STILL)
    trust = [known_of(prior, age_s) for age_s in (0, 0.2, FADE_S)]
    assert trust[0] is trust[1]
    assert trust[2][2, 1, 1] == pytest.approx(math.exp(-1))
    assert trust[2][0, 1, 1] == 1


def test_time_may_begin_below_zero() -> None:
    prior = FeedbackPrior()
    for row in (1, 2):
        prior.update(feedback([(0, row, 1)], [1.0], at_s=-0.1), LOOKS, STILL)
        values = known_of(prior, -0.1)
        assert values[0, row, 1] == 1


def test_newer_answers_weigh_more_and_leave_others_alone() -> None:
    prior = FeedbackPrior()
    prior.update(feedback([(0, 1, 1), (0, 3, 5)], [1.0, 1.0]), LOOKS, STILL)
    prior.update(feedback([(0, 1, 1), (0, 0, 0)], [0.25, 1.0], at_s=2), LOOKS, STILL)
    values = known_of(prior, 2)
    assert values[0, 1, 1] == pytest.approx(RENEW * 0.5 + (1 - RENEW))
    assert values[2, 1, 1] == values[0, 0, 0] == 1
    assert values[2, 3, 5] == pytest.approx(math.exp(-2 / FADE_S))


def test_another_question_forgets() -> None:
    prior = FeedbackPrior()
    prior.update(feedback([(0, 1, 1)], [1.0]), LOOKS, STILL)
    prior.reset()
    assert prior.evaluate(0, LOOKS) is None
    prior.update(feedback([(0, 0, 0)], [1.0]), LOOKS, STILL)
    values = known_of(prior)
    assert values[2].sum() == 1


def test_an_answer_about_no_token_teaches_nothing() -> None:
    prior = FeedbackPrior()
    prior.update(feedback([], []), LOOKS, STILL)
    values = prior.evaluate(0, LOOKS)
    assert values is None or not values[2].any()


def changed(change: float, row: int, col: int) -> torch.Tensor:
    appearance = LOOKS.clone()
    appearance[1, row, col] += change
    return appearance


def test_new_content_of_a_tile_has_no_attention() -> None:
    prior = FeedbackPrior()
    prior.on_request(0, LOOKS)
    prior.update(feedback([(1, 0, 0), (0, 2, 3)], [1.0, 0.5]), LOOKS, STILL)
    for change, trust in ((0.0, 1), (RENEWAL / 5, 0.8), (-RENEWAL / 2, 0.5), (RENEWAL, 0), (2 * RENEWAL, 0)):
        values = known_of(prior, looks=changed(change, 0, 1))
        assert values[2, 0, 1] == pytest.approx(trust, abs=1e-6)
        assert values[2, 0, 0] == values[2, 2, 3] == 1
    assert prior.evaluate(0, LOOKS) is not None


def test_the_same_looks_give_the_same_prior() -> None:
    prior, appearance = FeedbackPrior(), LOOKS.clone()
    prior.update(feedback([(0, 1, 1)], [1.0]), LOOKS, STILL)
    first = prior.evaluate(0, appearance)
    assert prior.evaluate(0, appearance) is first
    assert prior.evaluate(0, LOOKS) is not first


def test_change_counts_from_the_frame_that_was_answered_about() -> None:
    """Even if the camera has moved since; of another frame nothing is known, and nothing held against it."""
    before = changed(1.0, 1, 1)
    for frame_index, way in ((0, (0, 1)), (5, (0, 0))):
        prior = FeedbackPrior()
        prior.on_request(frame_index, before)
        prior.follow(moved(SHAPE, *way))
        prior.update(feedback([(0, 1, 1), (0, 2, 2)], [1.0, 1.0]), LOOKS, moved(SHAPE, *way))
        now = changed(1.0, 1, 1 + way[1])
        values = known_of(prior, looks=now)
        assert values[2].sum() == 2
        other_values = known_of(prior)
        assert other_values[2].sum() == (1 if frame_index == 0 else 2)


def test_change_is_measured_where_the_camera_has_carried_it() -> None:
    prior = FeedbackPrior()
    prior.on_request(0, changed(1.0, 1, 1))
    prior.update(feedback([(0, 1, 1)], [1.0]), LOOKS, STILL)
    prior.follow(moved(SHAPE, 1, 2))
    assert (known_of(prior, looks=changed(1.0, 2, 3))[2].sum(), known_of(prior)[2].sum()) == (1, 0)
