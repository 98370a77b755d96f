"""Which answers of a camera were due, and which came."""

from __future__ import annotations

from benchmarks.fleet import answer_points, targets
from tests.support.events import answer


def test_an_answer_is_due_at_the_first_frame_and_every_four_seconds_but_not_at_the_end() -> None:
    frames_s = [10 + number / 12 for number in range(12 * 19)]
    points = answer_points(
        frames_s, [answer(10.0, "a"), answer(14.0 - 1e-9, "b"), answer(18.5, "c"), answer(26.1, "d")]
    )
    assert (points.due, points.answer_count, points.share) == (5, 4, 0.8)
    assert [round(wait_ms) for wait_ms in points.waits_ms] == [0, 0, 500, 100]
    assert answer_points(frames_s[: 12 * 17], [answer(26.0, "late")]).answer_count == 0


def test_targets_hold_for_the_most_cameras() -> None:
    phases = [
        {"cameras": cameras, "share_worst": share, "fairness": 1.0, "camera": {"pss_mb": 51.0}}
        for cameras, share in ((16, 0.85), (1, 1.0))
    ]
    result = targets(phases)
    assert [entry["met"] for entry in result.values()] == [False, True, True]
