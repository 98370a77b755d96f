"""Questions about clips: answers follow from what is seen, names fit one thing, boxes hold what is asked about."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.errors import OptionError
from training.clips.cast import ClipOptions
from training.clips.scenes import clip_rng, random_plan
from training.clips.truth import KINDS, Box, Clip, Kind, Sample, Seen
from training.questions.samples import ask, plan_sample, random_sample
from training.questions.stories import Names, Story, stories

CIRCLE = Seen("circle", "red", (30, 20, 70, 60))
SQUARE = Seen("square", "blue", (130, 220, 170, 260))
NUMBER = Seen("number", "green", (480, 130, 520, 160), text="42")
WORD = Seen("word", "white", (480, 230, 560, 260), text="EXIT")


def clip(*frames: tuple[Seen, ...]) -> Clip:
    blank = np.zeros((300, 600, 3), np.uint8)
    return Clip((blank,) * len(frames), tuple(0.5 * i for i in range(len(frames))), frames)


STILL = clip((CIRCLE, SQUARE, NUMBER, WORD))


def moved(thing: Seen, dx: float, movement: str) -> tuple[Seen, Seen]:
    left, top, right, bottom = thing.box_px
    return tuple(  # type: ignore[return-value]
        Seen(thing.kind, thing.colour, (left + step, top, right + step, bottom), movement, thing.text)
        for step in (0, dx)
    )


def samples(video: Clip, kind: Kind, tries: int = 300) -> list[Sample]:
    rng = np.random.default_rng(0)
    results = [ask(rng, video, kind, "train") for _ in range(tries)]
    return [sample for sample in results if sample is not None]


def answers(video: Clip, kind: Kind) -> dict[str, str]:
    """Question → answer; a question that had two answers would be ambiguous."""
    replies: dict[str, set[str]] = {}
    for sample in samples(video, kind):
        assert sample.kind == kind
        replies.setdefault(sample.question.lower().rstrip("?."), set()).add(sample.answer)
    assert all(len(texts) == 1 for texts in replies.values())
    return {question: texts.pop() for question, texts in replies.items()}


@pytest.mark.parametrize(
    ("kind", "question", "answer"),
    [
        ("colour", "what colour is the circle", "red."),
        ("colour", "what color is the word exit", "white."),
        ("shape", "what shape is blue", "a square."),
        ("shape", "what is in the top left", "a circle."),
        ("where", "where is the red circle", "top left."),
        ("where", "in which place is the number 42", "right."),
        ("word", "read the word", "EXIT."),
        ("word", "what word is white", "EXIT."),
        ("number", "what number is shown", "42."),
        ("count", "how many things are there", "four."),
        ("count", "how many circles do you see", "one."),
        ("count", "count the blue things", "one."),
        ("exists", "is there a red circle", "yes."),
        ("exists", "is the square blue", "yes."),
        ("exists", "do you see a word exit", "yes."),
        ("relation", "is the circle left of the number 42", "yes."),
        ("relation", "is the circle right of the number 42", "no."),
        ("relation", "what is above the square", "a red circle."),
        ("relation", "where is the word from the blue square", "right."),
    ],
)
def test_answers_about_a_picture(kind: Kind, question: str, answer: str) -> None:
    picture = clip((CIRCLE, SQUARE)) if question == "what is above the square" else STILL
    assert answers(picture, kind)[question] == answer


def test_captions_of_pictures_and_clips() -> None:
    caption = "a red circle, a blue square, a green number 42 and a white word EXIT."
    assert set(answers(STILL, "describe").values()) == {caption}
    assert samples(STILL, "describe")[0].facts == ("red circle", "blue square", "green number 42", "white word EXIT")
    first, second = moved(CIRCLE, 80, "right")
    video = clip((first,), (second, SQUARE))
    assert set(answers(video, "describe").values()) == {"a red circle moves right and a blue square appears."}
    assert samples(video, "describe")[0].facts == ("red circle moves right", "blue square appears")


def test_movement() -> None:
    first, second = moved(CIRCLE, 80, "right")
    replies = answers(clip((first, SQUARE), (second, SQUARE)), "movement")
    assert replies["which way does the circle move"] == "right."
    assert replies["where does the blue square go"] == "nowhere."
    assert replies["what moves right"] == "a red circle."
    assert not samples(STILL, "movement"), "nothing is seen to move in one picture"


@pytest.mark.parametrize(
    ("before", "after", "answers_wanted"),
    [
        ((SQUARE,), (SQUARE, CIRCLE), {"a red circle appeared.", "it appeared.", "a red circle."}),
        ((SQUARE, CIRCLE), (SQUARE,), {"a red circle left.", "it left.", "a red circle."}),
        (
            (SQUARE, CIRCLE),
            (SQUARE, Seen("circle", "green", CIRCLE.box_px)),
            {"a red circle turned green.", "it turned green.", "a circle."},
        ),
        ((SQUARE, CIRCLE), (SQUARE, CIRCLE), {"nothing."}),
        ((SQUARE, CIRCLE), (WORD,), set()),
    ],
)
def test_events(before: tuple[Seen, ...], after: tuple[Seen, ...], answers_wanted: set[str]) -> None:
    assert {sample.answer for sample in samples(clip(before, after), "event")} == answers_wanted


def test_changing_things_are_not_asked_about_as_if_they_stayed() -> None:
    turns = clip((CIRCLE,), (Seen("circle", "green", CIRCLE.box_px),))
    comes = clip((SQUARE,), (SQUARE, CIRCLE))
    assert not samples(turns, "colour")
    assert not samples(comes, "count")
    assert all("square" in sample.question for sample in samples(comes, "colour"))


def test_a_name_fits_one_thing_alone() -> None:
    twins = clip((CIRCLE, Seen("circle", "blue", (200, 200, 240, 240)), Seen("circle", "blue", (400, 200, 440, 240))))
    assert {sample.answer for sample in samples(twins, "where")} == {"top left."}
    assert all("red circle" in sample.question.lower() for sample in samples(twins, "where"))
    assert not samples(twins, "colour")
    names = Names(stories(twins))
    assert [len(names.fitting(name)) for name in ("circle", "red circle", "blue circle", "square")] == [3, 1, 2, 0]


def test_two_words_are_distinguished_by_colour_or_side() -> None:
    other = Seen("word", "white", (40, 230, 120, 260), text="CAVE")
    assert answers(clip((WORD, other)), "word") == {
        "what word is on the left": "CAVE.",
        "what word is on the right": "EXIT.",
    }


def test_things_close_to_a_border_have_no_place() -> None:
    assert not samples(clip((Seen("star", "red", (185, 130, 225, 170)),)), "where")


def test_boxes_are_those_of_what_is_asked_about() -> None:
    for sample in samples(STILL, "relation"):
        assert len(sample.boxes[0]) == 2
    all_boxes = {thing.box_px for thing in STILL.things[0]}
    counts = [sample for sample in samples(STILL, "count") if "things are there" in sample.question]
    assert any(set(sample.boxes[0]) == all_boxes for sample in counts)
    comes = clip((SQUARE,), (SQUARE, CIRCLE))
    appeared = next(sample for sample in samples(comes, "event") if sample.boxes)
    assert appeared.boxes == ((), (CIRCLE.box_px,))


def test_absent_things_are_denied() -> None:
    for question, answer in answers(STILL, "exists").items():
        if question.startswith("is there a red") and "circle" not in question:
            assert answer == "no."
    assert {sample.answer for sample in samples(clip((CIRCLE,)), "word", 2000)} == {"there is no word."}
    assert {"none.", "four."} < {sample.answer for sample in samples(STILL, "count", 1000)}


def test_a_pattern_has_a_name_and_a_colour() -> None:
    pattern = clip((Seen("marble", "blue", (0, 0, 600, 300)),))
    assert set(answers(pattern, "colour").values()) == {"blue."}
    assert set(answers(pattern, "shape").values()) == {"marble."}
    for kind in ("where", "word", "count", "relation", "describe"):
        assert all(not sample.boxes[0] for sample in samples(pattern, kind))


@pytest.mark.parametrize("frames", [2, 3, 4])
def test_stories_are_the_parts_of_the_cast(frames: int) -> None:
    for number in range(150):
        plan = random_plan(clip_rng("train", number), (512, 384), frames, options=ClipOptions(void_share=0))
        played = {
            tuple(player.seen(frame, plan.size_px, plan.camera_px(frame)) for frame in range(frames))
            for player in plan.cast
        }
        assert {story.appearances for story in stories(plan.facts())} == played


@pytest.mark.parametrize("kind", KINDS)
def test_random_samples_of_every_kind_hold_together(kind: Kind) -> None:
    for number in range(30):
        _, sample = plan_sample(clip_rng("test", number), (512, 256), 3, "test", kind, ClipOptions())
        assert sample.kind == kind
        assert sample.answer.endswith(".")
        assert len(sample.boxes) == 3
        boxes_px: set[Box] = {thing.box_px for things in sample.clip.things for thing in things}
        assert all(box in boxes_px for boxes in sample.boxes for box in boxes)
        assert all(fact in sample.answer for fact in sample.facts)
        assert bool(sample.facts) == (kind == "describe")


def test_a_random_sample_is_drawn_and_repeatable() -> None:
    first, repeat = (random_sample(clip_rng("train", 5), (256, 256), 2, "train", "event") for _ in range(2))
    assert (first.question, first.answer) == (repeat.question, repeat.answer)
    np.testing.assert_array_equal(first.clip.frames[1], repeat.clip.frames[1])
    assert first.clip.frames[0].std() > 1


def test_a_kind_that_no_clip_gives_is_reported() -> None:
    with pytest.raises(OptionError, match="no clip of 1 frames gave a question of the kind 'movement'"):
        random_sample(clip_rng("train", 0), (256, 256), 1, "train", "movement")


def test_a_story_knows_what_became_of_it() -> None:
    story = Story((None, CIRCLE, Seen("circle", "green", CIRCLE.box_px)))
    assert (story.appears, story.leaves, story.turns, story.steady, story.colour) == (True, False, True, False, "")
    assert story.phrase == "a circle"
    assert story.boxes == ((), (CIRCLE.box_px,), (CIRCLE.box_px,))
