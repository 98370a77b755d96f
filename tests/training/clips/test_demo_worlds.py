"""Random worlds are plain to see, and the answers to questions about them follow from what is in them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from stream.scenes.drawing import DIRECTIONS, GroundTruth, SceneObject
from training.clips.demo_worlds import KINDS, SIZES_PX, Kind, ask, random_facts, random_world

RED_CIRCLE = SceneObject("circle", "red", 100, 50, 40, "up")
BLUE_SQUARE = SceneObject("square", "blue", 300, 250, 40)
GREEN_NUMBER = SceneObject("number", "green", 500, 150, 40, "left", 42)
FACTS = GroundTruth.of(600, 300, [RED_CIRCLE, BLUE_SQUARE, GREEN_NUMBER])


def answers(kind: Kind, facts: GroundTruth = FACTS) -> dict[str, str]:
    """Question → answer, of many questions of a kind."""
    rng = np.random.default_rng(0)
    questions = [ask(rng, facts, kind) for _ in range(300)]
    assert all(question.kind == kind for question in questions)
    return {question.text.lower().rstrip("?."): question.answer for question in questions}


def test_the_same_seed_gives_the_same_world() -> None:
    for seed in range(12):
        size_px = SIZES_PX[seed % 3]
        first, second = (random_world(np.random.default_rng(seed), size_px) for _ in range(2))
        np.testing.assert_array_equal(first.image, second.image)
        assert first.facts == second.facts
        assert first.image.shape == (size_px[1], size_px[0], 3)


def test_things_keep_apart_and_stand_plainly_in_one_place() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        facts = random_facts(rng, (384, 256))
        assert 1 <= len(facts.things) <= 3
        for left, right in pairwise(facts.things):
            assert right.x_px - left.x_px >= 0.08 * 384
        for thing in facts.things:
            assert thing.visible_share(384, 256) >= 0.7


def test_a_moving_thing_is_elsewhere_in_each_frame_and_may_leave_its_streak_out() -> None:
    rng = np.random.default_rng(2)
    moving_things = 0
    for _ in range(40):
        world = random_world(rng, (320, 192), frames=3, streaks=False)
        assert len(world.images) == len(world.frames) == 3
        assert world.facts is world.frames[-1]
        for first, middle, last in zip(*(facts.things for facts in world.frames), strict=True):
            way = last.x_px - first.x_px, last.y_px - first.y_px
            dx, dy = DIRECTIONS.get(last.movement, (0, 0))
            assert [np.sign(round(axis, 6)) for axis in way] == [dx, dy]
            assert first.visible_share(320, 192) >= 0.5
            assert middle.x_px == pytest.approx((first.x_px + last.x_px) / 2)
            moving_things += last.movement != "still"
    assert moving_things > 20


def test_a_streak_is_drawn_only_where_asked_for() -> None:
    compared = 0
    for seed in range(12):
        streaked, plain = (
            random_world(np.random.default_rng(seed), (320, 192), frames=2, streaks=streaks)
            for streaks in (True, False)
        )
        if streaked.facts != plain.facts:
            continue  # drawn anew until all of it was to be seen
        for thing in plain.facts.things:
            dx, dy = DIRECTIONS.get(thing.movement, (0, 0))
            x, y = round(thing.x_px - 0.8 * thing.width_px * dx), round(thing.y_px - 0.8 * thing.size_px * dy)
            if 0 <= x < 320 and 0 <= y < 192:
                differs = np.abs(streaked.image[y, x].astype(int) - plain.image[y, x].astype(int)).max()
                assert (differs > 15) == (thing.movement != "still")
                compared += 1
    assert compared > 8


def test_captions() -> None:
    assert set(answers("caption").values()) == {
        "a red circle moves up, a blue square stays still and a green number 42 moves left."
    }
    assert "say what happens" in answers("caption")


@pytest.mark.parametrize(
    ("kind", "question", "answer"),
    [
        ("colour", "what colour is the circle", "red."),
        ("shape", "what is the blue thing", "a square."),
        ("shape", "what is green", "a number 42."),
        ("place", "where is the red circle", "top left."),
        ("place", "where is the square", "bottom."),
        ("movement", "which way does the circle move", "it moves up."),
        ("movement", "what does the blue square do", "it stays still."),
        ("movement", "how does the number move", "it moves left."),
        ("number", "what is the number", "42."),
        ("number", "what number is on the right", "42."),
        ("count", "how many things are there", "three."),
        ("exists", "is there a red circle", "yes."),
    ],
)
def test_answers_follow_from_the_facts(kind: Kind, question: str, answer: str) -> None:
    assert answers(kind)[question] == answer


def test_absent_things_are_denied() -> None:
    for question, answer in answers("colour").items():
        if not any(shape in question for shape in ("circle", "square", "number")):
            assert answer.startswith("there is no ")
    for question, answer in answers("exists").items():
        has_shape = any(name in question for name in ("circle", "square", "number"))
        has_thing = any(name in question for name in ("red circle", "blue square", "green number"))
        coloured = len(question.split()) > 4 + ("do you see" in question)
        assert answer == ("yes." if has_thing or (has_shape and not coloured) else "no.")
    assert set(answers("number", GroundTruth.of(600, 300, [RED_CIRCLE])).values()) == {"there is no number."}


def test_with_two_numbers_the_side_decides() -> None:
    other = SceneObject("number", "red", 100, 50, 40, number=17)
    replies = answers("number", GroundTruth.of(600, 300, [other, GREEN_NUMBER]))
    assert replies == {"what number is on the left": "17.", "what number is on the right": "42."}


def test_things_that_share_a_shape_are_distinguished_by_colour_or_not_asked_about() -> None:
    twins = GroundTruth.of(600, 300, [RED_CIRCLE, SceneObject("circle", "blue", 300, 250, 40)])
    questions = {question for question, answer in answers("place", twins).items() if not answer.startswith("there")}
    assert all("red circle" in question or "blue circle" in question for question in questions)
    same = GroundTruth.of(600, 300, [RED_CIRCLE, SceneObject("circle", "red", 300, 250, 40)])
    assert all(answer.startswith("there is no") for answer in answers("movement", same).values())


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_short(kind: Kind) -> None:
    assert all(len(answer.split()) <= 21 for answer in answers(kind).values())
