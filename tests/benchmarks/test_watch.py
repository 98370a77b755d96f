"""How shared tokens are held against separate ones, and times against those of one question."""

from __future__ import annotations

import pytest

from benchmarks.watch import compare_ways, moving_pictures, ratio


def test_times_are_compared_without_the_first_which_warms_up() -> None:
    assert ratio([90.0, 3.0, 5.0], [10.0, 2.0, 2.0]) == 2.0


@pytest.mark.parametrize(("only_separate", "within_noise"), [(3, True), (4, True), (5, False)])
def test_a_difference_is_noise_if_chance_would_give_it(only_separate: int, within_noise: bool) -> None:
    shared = [*[("present", 0.9)] * 10, *[("present", 0.59)] * only_separate, ("absent", 0.6)]
    separate = [*[("present", 0.6)] * (10 + only_separate), ("absent", 0.1)]
    figures = compare_ways(shared, separate)
    assert figures["present"] == {
        "questions": 10 + only_separate,
        "is": "true_yes",
        "shared": round(10 / (10 + only_separate), 3),
        "separate": 1.0,
        "only_shared": 0,
        "only_separate": only_separate,
        "within_noise": within_noise,
    }
    assert (figures["absent"]["is"], figures["absent"]["shared"], figures["absent"]["separate"]) == (
        "false_yes",
        1.0,
        0,
    )


def test_the_moving_stream_moves() -> None:
    first, *others = moving_pictures(4)
    assert all((first != other).any() for other in others)
