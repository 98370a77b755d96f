"""Lessons go from seeing to answering; what they say of demo worlds is what those hold."""

from __future__ import annotations

import numpy as np

from stream.scenes.drawing import GroundTruth, SceneObject
from training.model.lessons import QUESTIONS, BatchPlan, Teacher, seen_in
from training.model.views import STRATEGIES


def share_asking(progress: float) -> float:
    teacher = Teacher(np.random.default_rng(1))
    return float(np.mean([teacher.plan(progress).asks for _ in range(300)]))


def test_it_begins_with_seeing() -> None:
    assert share_asking(0.1) < 0.5
    assert share_asking(0.9) > 0.65


def test_overviews_take_half_of_the_tokens_at_most_or_all_of_them() -> None:
    teacher = Teacher(np.random.default_rng(3))
    plans = [plan for plan in (teacher.plan(0.9) for _ in range(600)) if plan.asks]
    overviews = [plan for plan in plans if plan.overview]
    assert 0.35 < len(overviews) / len(plans) < 0.55
    glances = [plan for plan in overviews if plan.overview >= plan.budget]
    assert 0 < len(glances) / len(overviews) < 0.2
    assert all(plan.overview <= plan.budget / 2 for plan in overviews if plan not in glances)
    assert {plan.strategy for plan in overviews} == set(STRATEGIES)


def test_a_demo_world_of_several_frames_mostly_shows_movement_by_frames_alone() -> None:
    teacher = Teacher(np.random.default_rng(5))
    plan = BatchPlan(True, 0, True, True, 2, (320, 192), 32, "grid")
    streaked = []
    for _ in range(40):
        lesson = teacher.lesson(plan)
        assert len(lesson.clip.frames) == len(lesson.clip.times_s) == len(lesson.clip.things) == 2
        for before, now in zip(*lesson.clip.things, strict=True):
            if now.movement != "still" and now.kind != "number":
                width, height = now.box_px[2] - now.box_px[0], now.box_px[3] - now.box_px[1]
                streaked.append(abs(width - height) > 1)
                assert before.box_px != now.box_px
    assert 0.2 < np.mean(streaked) < 0.6, "with a streak its box is no square"


def test_every_lesson_that_asks_has_questions_about_its_clip() -> None:
    teacher = Teacher(np.random.default_rng(2))
    for frames in (1, 3):
        lesson = teacher.lesson(BatchPlan(True, 0, True, False, frames, (256, 256), 32, "grid"))
        assert len(lesson.clip.frames) == len(lesson.clip.times_s) == frames
        assert len(lesson.questions) == QUESTIONS
        assert all(question and answer.endswith(".") for question, answer in lesson.questions)
        assert max(frame.std() for frame in lesson.clip.frames) > 0, "it is drawn"
    assert teacher.lesson(BatchPlan(False, 0, False, False, 1, (256, 256), 64, "grid")).questions == ()
    assert len(teacher.lesson(BatchPlan(True, 0, False, True, 1, (320, 192), 32, "grid")).questions) == QUESTIONS


def test_reading_is_taught_on_small_pictures() -> None:
    lesson = Teacher(np.random.default_rng(2)).lesson(BatchPlan(True, 2, False, False, 1, (160, 96), 15, "grid"))
    assert {thing.kind for thing in lesson.clip.things[0]} <= {"word", "number"}
    ((_, answer),) = lesson.questions
    assert len(answer.rstrip(".")) <= 2


def test_comparing_and_counting_are_taught_on_small_pictures() -> None:
    teacher = Teacher(np.random.default_rng(4))
    plans = [plan for plan in (teacher.plan(0.5) for _ in range(200)) if plan.compares]
    assert {plan.frames for plan in plans} == {1, 2, 3, 4}
    for frames in (1, 3):
        plan = next(plan for plan in plans if plan.frames == frames)
        lesson = teacher.lesson(plan)
        assert len(lesson.clip.frames) == frames
        assert lesson.clip.frames[0].shape[0] * lesson.clip.frames[0].shape[1] <= 256 * 256
        assert len(lesson.questions) == plan.questions
        assert set(plan.kinds) == ({"relation", "count"} if frames == 1 else {"movement", "event", "relation"})


def test_a_demo_worlds_things_keep_their_streaks_and_digits() -> None:
    facts = GroundTruth.of(
        256,
        128,
        [SceneObject("circle", "blue", 64, 64, 64, "left"), SceneObject("number", "red", 208, 48, 48, number=7)],
    )
    circle, number = seen_in(facts)
    assert circle.movement == "left"
    assert circle.box_px[2] > 64 + 32, "the streak reaches behind it"
    assert number.text == "07"
    assert number.letters[0][2] == number.letters[1][0] == 208
