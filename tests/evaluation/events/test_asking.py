"""Questions about events, and the errors of answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluation.events.asking import Point, Verdict, judge, named, points, zone_of
from evaluation.events.clips import EVENTS, event_clip, name_of

POINT = Point(8, "Say what happens.", "describe", "", ("red circle", "blue word EXIT"), ("green star",), True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a red circle and a blue square.", ["red circle", "blue square"]),
        ("A red circle stays still, an orange word EXIT moves left.", ["red circle", "orange word EXIT"]),
        ("a number 42 appears and moves left and a star leaves.", ["number 42"]),
        ("a red ring turns green.", ["green ring"]),
        ("nothing is there.", []),
    ],
)
def test_names_of_a_description(text: str, names: list[str]) -> None:
    assert named(text) == names


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("a blue word EXIT and a red circle.", Verdict()),
        ("a red circle, a green star and a blue word EXIT.", Verdict(ghosts=1)),
        ("a red circle, a red circle and a blue word EXIT.", Verdict(ghosts=1)),
        ("a red circle.", Verdict(misses=1)),
        ("a red circle and a blue word EXXT.", Verdict(misses=1, inventions=1)),
        ("", Verdict(misses=2)),
    ],
)
def test_errors_of_a_description(text: str, verdict: Verdict) -> None:
    assert judge(POINT, text) == verdict
    assert verdict.is_right == (verdict == Verdict())


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("two.", Verdict()),
        ("three.", Verdict(ghosts=1)),
        ("one.", Verdict(misses=1)),
        ("many.", Verdict(inventions=1)),
    ],
)
def test_errors_of_a_count(text: str, verdict: Verdict) -> None:
    assert judge(replace(POINT, asks="count"), text) == verdict


@pytest.mark.parametrize(
    ("subject", "text", "verdict"),
    [
        ("red circle", "yes.", Verdict()),
        ("red circle", "no.", Verdict(misses=1)),
        ("green star", "no.", Verdict()),
        ("green star", "yes.", Verdict(ghosts=1)),
        ("white ring", "yes.", Verdict(inventions=1)),
        ("white ring", "a ring.", Verdict(inventions=1)),
    ],
)
def test_errors_of_a_yes_or_no(subject: str, text: str, verdict: Verdict) -> None:
    assert judge(replace(POINT, asks="still", subject=subject), text) == verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("EXIT.", Verdict()),
        ("GATE.", Verdict(ghosts=1, misses=1)),
        ("EXT.", Verdict(misses=1, inventions=1)),
    ],
)
def test_errors_of_reading(text: str, verdict: Verdict) -> None:
    assert judge(replace(POINT, asks="read", past_names=("blue word GATE",)), text) == verdict


@pytest.mark.parametrize("number", range(8))
def test_a_right_answer_has_no_errors(number: int) -> None:
    for kind in EVENTS:
        clip = event_clip(np.random.default_rng(number), kind)
        clip_points = points(clip, number)
        assert [point.frame for point in clip_points] == list(clip.schedule.answers)
        assert [point.is_after for point in clip_points].index(True) == clip.schedule.at
        assert len({point.question for point in clip_points}) == 1
        for point in clip_points:
            assert judge(point, f"{point.answer}.").is_right
            assert not set(point.names) & set(point.past_names)


def test_yes_and_no_are_right_as_often() -> None:
    answers = [
        points(event_clip(np.random.default_rng(number), kind), number)[-1].answer
        for kind in EVENTS
        if kind != "text"
        for number in (3, 7)
    ]
    assert answers.count("yes") == answers.count("no")


def test_a_zone_cuts_nothing_and_limits_what_is_there() -> None:
    zones = 0
    for number in range(12):
        clip = event_clip(np.random.default_rng(number), "leaves")
        zone_px = zone_of(clip, 32)
        if zone_px is None:
            continue
        zones += 1
        assert all(edge % 32 == 0 for edge in zone_px)
        for point in points(clip, 0, zone_px):
            zone_names = set(point.names)
            assert zone_names
            for thing in clip.there(point.frame):
                left, top, right, bottom = thing.box_px
                within = zone_px[0] <= left and right <= zone_px[2] and zone_px[1] <= top and bottom <= zone_px[3]
                assert within == (name_of(thing) in zone_names)
    assert zones
