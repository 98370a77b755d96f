"""The suites are what was frozen: same questions, answers, places and pictures; none of them is training's."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.metadata import version
from itertools import groupby, islice

import numpy as np
import pytest

import evaluation.suites
from arr_coc.errors import OptionError
from evaluation import stream_samples
from evaluation.freeze import FROZEN, thumbnails
from evaluation.stream_samples import clip_samples
from evaluation.suites import FIRST_NUMBERS, SEEDS_OF_A_SUITE, SUITES, first_seed, suite_hash, suite_samples
from training.clips.fonts import WORDS
from training.clips.scenes import clip_rng
from training.clips.truth import Sample
from training.questions.stories import middle as middle_of

WRITTEN = json.loads(FROZEN.read_text(encoding="utf-8"))
OTHER_LIBRARIES = {name for name, expected in WRITTEN["versions"].items() if version(name) != expected}
needs_the_same_fonts = pytest.mark.skipif(
    bool(OTHER_LIBRARIES), reason=f"the suites were frozen with other versions of {sorted(OTHER_LIBRARIES)}"
)


def test_there_are_the_eight_suites() -> None:
    assert list(SUITES) == ["still", "video", "text", "camouflage", "void", "pan", "stream", "large"]
    assert [suite.count for suite in SUITES.values()] == [300] * 6 + [1050, 300]
    assert SUITES["pan"].frames == (15,), "which makes twenty pans"


@needs_the_same_fonts
@pytest.mark.parametrize("name", SUITES)
def test_a_suite_is_what_was_frozen(name: str) -> None:
    record = WRITTEN["suites"][name]
    assert json.loads(json.dumps(SUITES[name].parameters)) == record["parameters"]
    assert suite_hash(name) == record["hash"]
    assert suite_hash(name, "report") == record["report_hash"]


def test_the_sets_of_a_suite_share_no_question() -> None:
    sets = [{(sample.question, sample.boxes) for sample in suite_samples("still", 12, of)} for of in FIRST_NUMBERS]
    assert len(sets) == 2
    assert sets[0].isdisjoint(sets[1])


@needs_the_same_fonts
@pytest.mark.parametrize("name", SUITES)
def test_pictures_look_as_they_did(name: str) -> None:
    off = np.abs(np.array(thumbnails(name)) - np.array(WRITTEN["suites"][name]["thumbnails"]))
    assert off.max() <= 2


def test_the_hash_changes_with_parameters_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    before = suite_hash("void")
    monkeypatch.setitem(SUITES, "void", replace(SUITES["void"], sizes_px=((256, 256),)))
    parameters_changed = suite_hash("void")
    monkeypatch.setattr(evaluation.suites, "clip_rng", lambda split, number: clip_rng(split, number + 1))
    assert len({before, parameters_changed, suite_hash("void")}) == 3


def test_seeds_of_suites_never_meet() -> None:
    starts = [first_seed(name) for name in SUITES]
    assert all(
        b - a == SEEDS_OF_A_SUITE > SUITES[name].count for a, b, name in zip(starts, starts[1:], SUITES, strict=False)
    )


@pytest.mark.parametrize("name", SUITES)
def test_samples_are_the_same_every_time_and_hold_together(name: str) -> None:
    first, repeat = list(suite_samples(name, 12)), list(suite_samples(name, 12))
    assert len(first) == len(repeat) == 12
    for sample, same in zip(first, repeat, strict=True):
        assert (sample.question, sample.answer, sample.boxes) == (same.question, same.answer, same.boxes)
        for frame, twin in zip(sample.clip.frames, same.clip.frames, strict=True):
            np.testing.assert_array_equal(frame, twin)
        assert sample.kind in SUITES[name].kinds
        assert sample.clip.size_px in SUITES[name].sizes_px
        assert len(sample.clip.frames) == len(sample.clip.times_s) == len(sample.clip.things) == len(sample.boxes)


def test_words_of_the_text_suite_take_one_to_four_tiles() -> None:
    for sample in suite_samples("text", 40):
        ((left, top, right, bottom),) = sample.boxes[0]
        assert 0.2 <= (right - left) * (bottom - top) / 32**2 <= 4
        assert sample.answer.removesuffix(".") in WORDS["test"]


def test_the_camouflaged_word_is_faint_and_its_distractors_are_bright() -> None:
    for sample in suite_samples("camouflage", 12):
        image = sample.clip.frames[0].astype(float)

        def contrast(box: tuple[float, float, float, float], image: np.ndarray = image) -> float:
            left, top, right, bottom = (round(edge) for edge in box)
            region = image[top:bottom, left:right].reshape(-1, 3)
            surroundings = image[max(0, top - 6) : bottom + 6, max(0, left - 6) : right + 6].reshape(-1, 3)
            return float(np.linalg.norm(region.mean(axis=0) - surroundings.mean(axis=0)))

        assert all(thing.colour == "faint" for thing in sample.clip.things[0] if thing.text)
        assert sample.distractors[0]
        assert contrast(sample.boxes[0][0]) < min(contrast(box) for box in sample.distractors[0])


def test_a_pan_asks_the_same_of_a_thing_that_stays_in_the_picture() -> None:
    pans = [list(samples) for _, samples in groupby(suite_samples("pan", 45), key=lambda sample: sample.group)]
    assert [len(pan) for pan in pans] == [15, 15, 15]
    for pan in pans:
        assert len({(sample.question, sample.answer) for sample in pan}) == 1
        lefts_tops = np.array([sample.boxes[0][0][:2] for sample in pan])
        steps = np.diff(lefts_tops, axis=0)
        assert 8 <= abs(steps).max() <= 16
        np.testing.assert_allclose(steps, np.broadcast_to(steps[0], steps.shape))
        first, second = pan[0].clip.frames[0], pan[1].clip.frames[0]
        assert (first != second).any(axis=2).mean() > 0.5
        width, height = pan[0].clip.size_px
        for left, top, right, bottom in (box for sample in pan for box in sample.boxes[0]):
            assert min(left, top, width - right, height - bottom) >= 0


@pytest.fixture(scope="module")
def streams() -> list[list[Sample]]:
    """The first three clips of each part of the suite `stream`, undrawn."""
    samples_of_clips = (sample for _, sample in evaluation.suites._plan("stream", None, "choose"))
    clips = (list(samples) for _, samples in groupby(samples_of_clips, key=lambda sample: sample.group))
    return list(islice(clips, 21))


def test_a_stream_has_8_to_16_answers_in_35_to_120_seconds(streams: list[list[Sample]]) -> None:
    for clip in streams:
        times_s = [sample.clip.times_s[0] for sample in clip]
        assert 8 <= len(clip) <= 16
        assert 35 <= times_s[-1] - times_s[0] <= 120
        assert len(set(np.diff(times_s))) == 1
        assert {len(sample.clip.frames) for sample in clip} == {1}
    parts = [{sample.part for sample in clip} for clip in streams[:7]]
    assert parts == [
        *({"still", "detail"}, {"moving"}, {"sign"}, {"event", "before", "long before"}),
        *({"pan"}, {"cut", "after the cut", "gone"}, {"questions"}),
    ]


def test_stale_answers_were_right_for_the_same_question_and_are_not_now(streams: list[list[Sample]]) -> None:
    stale = 0
    for clip in streams:
        for index, sample in enumerate(clip):
            previous = {other.answer for other in clip[:index] if other.question == sample.question}
            assert set(sample.stale) == previous - {sample.answer}
            stale += len(sample.stale)
    assert stale > 50


def test_answers_of_a_stream_are_true_of_its_newest_frame(streams: list[list[Sample]]) -> None:
    for sample in (sample for clip in streams for sample in clip):
        (things,) = sample.clip.things
        if sample.part in ("sign", "cut", "after the cut") and sample.kind in ("word", "number"):
            assert [thing.text for thing in things if thing.kind == sample.kind] == [sample.answer.rstrip(".")]
        elif sample.part in ("event", "cut", "gone"):
            subject = re.sub("What colour is the |Is there an? ", "", sample.question).rstrip("?").split()
            matching = [thing for thing in things if set(subject) <= {thing.kind, thing.colour}]
            truth = matching[0].colour if sample.kind == "colour" else "yes" if matching else "no"
            assert sample.answer == f"{truth}."
        elif sample.part == "moving":
            (box,) = sample.boxes[0]
            ninth = [3 * middle // side for middle, side in zip(middle_of(box), sample.clip.size_px, strict=True)]
            across, down = ("left", "", "right"), ("top", "", "bottom")
            name = f"{down[int(ninth[1])]} {across[int(ninth[0])]}".strip() or "centre"
            assert sample.answer == f"{name}."


def test_events_are_asked_about_within_the_reach_of_four_frames_and_beyond(streams: list[list[Sample]]) -> None:
    for clip, happens in zip(streams[3::7], ("turned", "left", "appeared"), strict=True):
        (happened,) = {sample.answer for sample in clip if sample.kind == "event"}
        assert happened.startswith(f"it {happens}")
        indices = [index for index, sample in enumerate(clip) if sample.kind == "event"]
        assert [clip[index].part for index in indices] == ["before", "before", "long before", "long before"]
        assert [index - indices[0] for index in indices] == [0, 2, 3, 5]
        answers_before = {clip[index].answer for index in range(indices[0])}
        assert not answers_before & {sample.answer for sample in clip[indices[0] :]}, (
            "the event changes the standing answer"
        )


def test_things_cut_by_the_border_of_a_pan_are_not_asked_about(streams: list[list[Sample]]) -> None:
    for sample in streams[4] + streams[11]:
        width, height = sample.clip.size_px
        for left, top, right, bottom in sample.boxes[0]:
            assert min(left, top, width - right, height - bottom) >= 0


def test_no_room_for_a_stream_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_samples, "_PARTS", (lambda *arguments: [],))
    with pytest.raises(OptionError, match="no clip of 90x80 pixels had room for its questions in 300 tries"):
        list(clip_samples(clip_rng("test", 0), (90, 80), 0, SUITES["stream"].options))


def test_bad_input_is_reported_with_the_choices() -> None:
    with pytest.raises(OptionError, match="no suite is called 'stil'; there are still, video, text, camouflage"):
        suite_samples("stil")
    with pytest.raises(OptionError, match="no suite"):
        suite_hash("")
    with pytest.raises(OptionError, match="1 sample or more, got 0"):
        suite_samples("still", 0)
