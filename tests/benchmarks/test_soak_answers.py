"""A stream that is answered about for long: what is asked of it, how it is judged, and that it stays as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arr_coc.types import NS_PER_S, FrameStamp
from benchmarks.soak_answers import Run, SoakPlan, open_model, verdict
from benchmarks.support.reel import FPS, QUESTION_FRAMES, REEL_FRAMES, SHOT_FRAMES, Reel
from stream.config import Config
from tests.support.answer_models import FakeAnswerModel


@pytest.fixture(scope="module")
def reel() -> Reel:
    return Reel.random()


def test_the_reel_begins_again_every_thousand_frames(reel: Reel) -> None:
    assert sum(SHOT_FRAMES) == REEL_FRAMES
    for index in (0, 39, 40, 999):
        (plane,), (repeat,) = reel.planes(index).planes, reel.planes(index + 7 * REEL_FRAMES).planes
        np.testing.assert_array_equal(plane, repeat)
        assert reel.question(index) == reel.question(index + 7 * REEL_FRAMES)
    assert Reel.random().questions == reel.questions != Reel.random(1).questions


def test_an_expected_answer_stays_true_while_it_is_asked(reel: Reel) -> None:
    """Things move a little; they neither leave the picture nor change places."""
    for first in range(0, REEL_FRAMES, QUESTION_FRAMES):
        frame_things = [
            [(thing.colour, thing.shape) for thing in reel.facts(index).things]
            for index in range(first, first + QUESTION_FRAMES)
        ]
        assert all(things == frame_things[0] for things in frame_things)
        assert reel.question(first) == reel.question(first + QUESTION_FRAMES - 1)


def test_every_kind_of_question_is_asked_and_answers_differ(reel: Reel) -> None:
    assert {question.kind for question in reel.questions} == {"colour", "shape", "count", "exists"}
    assert len({question.answer for question in reel.questions}) > 5


def test_a_run_answers_at_cuts_at_questions_and_every_so_often(reel: Reel) -> None:
    run = Run(SoakPlan(60, answer_every=10), FakeAnswerModel(Config()))
    answers = {}
    for index in range(60):
        stamp = FrameStamp(index, index * NS_PER_S // FPS, 0)
        query = "why?" if 25 <= index < 40 else "what?" if index < 40 else "who?"
        answers[index] = run.step(reel.planes(index), stamp, query)
    triggers = {index: answer.trigger for index, answer in answers.items() if answer is not None}
    assert triggers == {0: "start", 10: "every", 20: "every", 25: "asked", 35: "every", 40: "asked", 50: "every"}
    assert run.cuts == 1
    assert answers[50] is not None
    assert answers[50].text.startswith("frame 50 ")


def test_a_run_of_one_epoch_notices_no_cut(reel: Reel) -> None:
    run = Run(SoakPlan(8, one_epoch=True), FakeAnswerModel(Config()))
    for index in range(36, 44):
        run.step(reel.planes(index), FrameStamp(index, index * NS_PER_S // FPS, 0), "what?")
    assert run.cuts == 0


def thousand(**changed: Any) -> dict[str, Any]:
    return {"accuracy": 0.7, "same": 1.0, "lost": 0, "gained": 0, **changed}


@pytest.mark.parametrize(
    ("last", "faults", "looped", "equal", "is_met"),
    [
        ({}, [], False, True, True),
        ({"lost": 3, "gained": 1, "same": 0.9}, [], False, True, True),
        ({"lost": 12, "gained": 2}, [], False, False, False),
        ({"lost": 2, "gained": 12}, [], False, False, False),
        ({}, ["MiB grew by 20"], False, True, False),
        ({"same": 0.99}, [], True, True, False),
    ],
)
def test_a_run_is_judged(last: dict[str, Any], faults: list[str], looped: bool, equal: bool, is_met: bool) -> None:
    result = verdict([thousand(), thousand(**last)], faults, looped=looped)
    assert (result["accuracy_equal"], result["met"]) == (equal, is_met)


def test_answers_are_held_against_those_of_the_first_thousand() -> None:
    class Forgetful(FakeAnswerModel):
        """Knows the truth about the first thousand frames, and about half of the others."""

        def answer(self, packet: Any, query: str) -> Any:
            list(super().answer(packet, query))
            index = packet.stamp.frame_index
            yield Reel.random().question(index).answer if index < REEL_FRAMES or index % 200 < 100 else "?"

    run = Run(SoakPlan(2 * REEL_FRAMES, answer_every=100, looped=True), Forgetful(Config()))
    first, second = (thousand_frames.as_json() for thousand_frames in run.go())
    assert (first["accuracy"], first["same"], first["lost"]) == (1.0, 1.0, 0)
    assert second["lost"] == pytest.approx(second["answers"] * (1 - second["same"]))
    assert second["lost"] > 0
    assert second["accuracy"] == second["same"] < 1
    assert run.samples.frames == [500, 1000, 1500, 2000]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["looped", "one_epoch"])
def test_thousands_of_frames_later_it_is_as_small_and_as_right(way: str) -> None:
    run = Run(SoakPlan(4 * REEL_FRAMES, **{way: True}), open_model(None))
    thousands = [thousand_frames.as_json() for thousand_frames in run.go()]
    result = verdict(thousands, run.samples.faults(), looped=way == "looped")
    assert result["met"], result
    assert result["accuracy_first"] > 0.5
    assert run.samples.growth("MiB") < 2
    assert run.cuts == (4 * len(SHOT_FRAMES) - 1 if way == "looped" else 0)
