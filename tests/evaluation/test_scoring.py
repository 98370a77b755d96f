"""Where tokens lie, against boxes."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.qwen.flops import Flops
from arr_coc.types import TileGrid
from evaluation.report import bootstrap, estimate, wilson
from evaluation.scoring import RegionScores, normalise, score, score_regions
from evaluation.strategies.base import Reply
from tests.support.evaluation import picture, question
from training.clips.truth import Box

GRID = TileGrid.of(128, 128)


def reply(*regions: tuple[int, int, int]) -> Reply:
    return Reply("", len(regions), 16, np.array(regions, np.int32).reshape(-1, 3), GRID, Flops(), 1.0, 0)


def region_scores(boxes: tuple[Box, ...], distractors: tuple[Box, ...], *regions: tuple[int, int, int]) -> RegionScores:
    subject = question(boxes=(boxes,) if boxes else (), distractors=(distractors,) if distractors else ())
    object.__setattr__(subject, "frames", (picture(0, 128, 128),))
    return score_regions(subject, reply(*regions))


def test_iou_is_of_fine_tiles_with_touched_tiles() -> None:
    places = region_scores(((32, 0, 96, 32),), (), (0, 0, 1), (0, 3, 3), (1, 1, 0))
    assert places.iou == pytest.approx(1 / 3)
    assert places.covered == 0.5


def test_a_tile_that_is_hardly_touched_does_not_count() -> None:
    places = region_scores(((0, 0, 33, 32),), (), (0, 0, 0))
    assert (places.iou, places.covered) == (1.0, 1.0)


def test_boxes_of_a_frame_that_was_resized_stand_on_its_grid() -> None:
    subject = question(boxes=(((0, 0, 32, 32),),))
    object.__setattr__(subject, "frames", (picture(0, 64, 64),))
    places = score_regions(subject, reply((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)))
    assert (places.iou, places.covered) == (1.0, 1.0)


def test_density_counts_tokens_by_area_whatever_their_level() -> None:
    places = region_scores(((0, 0, 64, 32),), ((64, 64, 128, 128),), (0, 0, 0), (0, 0, 1), (1, 1, 1))
    assert places.on_asked == 1
    assert places.on_distractor == 0.25
    half = region_scores(((16, 0, 48, 32),), ((0, 96, 32, 128),), (0, 0, 0))
    assert half.on_asked == 0.5
    assert half.on_distractor == 0


def test_without_boxes_nothing_is_scored() -> None:
    assert region_scores((), (), (0, 0, 0)) == RegionScores()
    assert region_scores((), ((0, 0, 32, 32),), (0, 0, 0)) == RegionScores(on_distractor=1.0)
    outside = region_scores(((-50, -50, -10, -10),), (), (0, 0, 0))
    assert outside == RegionScores()


def test_only_the_newest_frame_counts() -> None:
    subject = question(frames=2, boxes=(((0, 0, 224, 160),), ()))
    assert score_regions(subject, reply((0, 0, 0))) == RegionScores()


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("A red circle.", "red circle"),
        ("  Two  things! ", "2 things"),
        ("it's 3.5, or 1,000", "it's 3.5 or 1,000"),
        ("the", "the"),
        ("top-left", "top left"),
        ("", ""),
    ],
)
def test_case_and_punctuation_are_removed(text: str, normal: str) -> None:
    assert normalise(text) == normal


def test_an_answer_is_right_word_for_word() -> None:
    subject = question(answers=("a square.", "square shape"))
    assert score(subject, "Square") == 1
    assert score(subject, "a blue square") == 0
    assert score(subject, "") == 0


@pytest.mark.parametrize(("votes", "worth"), [(0, 0), (1, 1 / 3), (2, 2 / 3), (3, 1), (10, 1)])
def test_ten_answers_are_votes(votes: int, worth: float) -> None:
    subject = question(answers=("yes",) * votes + ("no",) * (10 - votes))
    assert score(subject, "yes") == pytest.approx(worth)


def test_a_description_is_worth_the_share_of_facts_that_it_holds() -> None:
    subject = question(facts=("red circle", "moves left", "word cat", "art"))
    assert score(subject, "A red circle moves left; the word is cat. A cart.") == 0.5


def test_wilson_is_the_published_interval() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(20, 20)[1] == 1.0


def test_bootstrap_holds_the_mean_and_narrows_with_the_number() -> None:
    few, many = [0.0, 0.5, 1.0, 0.5] * 5, [0.0, 0.5, 1.0, 0.5] * 80
    assert bootstrap(few) == bootstrap(few)
    (low, high), (lower, upper) = bootstrap(few), bootstrap(many)
    assert low < 0.5 < high
    assert upper - lower < (high - low) / 3


def test_right_or_wrong_takes_wilson_and_shares_take_the_bootstrap() -> None:
    assert (estimate([1.0, 0.0, 1.0]).low, estimate([1.0, 0.0, 1.0]).high) == wilson(2, 3)
    assert (estimate([1.0, 0.5, 1.0]).low, estimate([1.0, 0.5, 1.0]).high) == bootstrap([1.0, 0.5, 1.0])
    with pytest.raises(ValueError, match="no score"):
        estimate([])
