"""Scores and their intervals."""

from __future__ import annotations

import pytest

from evaluation.intervals import bootstrap, estimate, wilson
from evaluation.scoring import normalise, score
from tests.evaluation_maker import question


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
def test_what_plays_no_part_is_taken_away(text: str, normal: str) -> None:
    assert normalise(text) == normal


def test_an_answer_is_right_word_for_word() -> None:
    asked = question(answers=("a square.", "square shape"))
    assert score(asked, "Square") == 1
    assert score(asked, "a blue square") == 0
    assert score(asked, "") == 0


@pytest.mark.parametrize(("votes", "worth"), [(0, 0), (1, 1 / 3), (2, 2 / 3), (3, 1), (10, 1)])
def test_ten_answers_are_votes(votes: int, worth: float) -> None:
    asked = question(answers=("yes",) * votes + ("no",) * (10 - votes))
    assert score(asked, "yes") == pytest.approx(worth)


def test_a_description_is_worth_the_share_of_facts_that_it_holds() -> None:
    asked = question(facts=("red circle", "moves left", "word cat", "art"))
    assert score(asked, "A red circle moves left; the word is cat. A cart.") == 0.5


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
