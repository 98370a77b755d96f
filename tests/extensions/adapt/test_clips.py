"""Frames to learn from: evenly over clips, some held out, boxes in the pixels that a frame has now."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arr_coc.errors import OptionError
from stream.errors import SourceError
from stream.extensions.adapt.clips import HELD_OUT_PART, QUESTIONS_A_FRAME, ClipFrame, clip_frames, plan_clips
from stream.extensions.adapt.labels import plan_labels, read_labels
from tests.support.benchmarks import coco, vqa_v2
from tests.support.video import make_video

QUESTIONS = tuple(f"What is {number}?" for number in range(20))


def numbered(count: int) -> list[np.ndarray]:
    """Frames that are brighter by two each."""
    return [np.full((64, 96, 3), 20 + 4 * number, np.uint8) for number in range(count)]


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return make_video(tmp_path / "clip.mp4", numbered(50), 25)


def number_of(frame: ClipFrame) -> int:
    return round((float(frame.read(64).image.mean()) - 20) / 4)


@pytest.mark.parametrize(("count", "numbers"), [(5, [5, 15, 25, 35, 45]), (1, [25])])
def test_frames_are_taken_evenly(clip: Path, count: int, numbers: list[int]) -> None:
    assert [number_of(frame) for frame in clip_frames(str(clip), count)] == pytest.approx(numbers, abs=1)


@pytest.mark.parametrize("count", [40, 50, 70])
def test_every_frame_that_is_planned_can_be_read(clip: Path, count: int) -> None:
    frames = [number_of(frame) for frame in clip_frames(str(clip), count)]
    assert len(frames) == len(set(frames)) == min(count, 50)


def test_a_clip_without_a_declared_length_is_counted(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.h264", numbered(12), 25, options={"bf": "0"})
    assert len(clip_frames(str(path), 20)) == 12


def test_pictures_and_scenes_are_clips_too(tmp_path: Path) -> None:
    for number, frame in enumerate(numbered(6)):
        Image.fromarray(frame).save(tmp_path / f"{number}.png")
    assert [number_of(frame) for frame in clip_frames(str(tmp_path), 6)] == list(range(6))
    assert len(clip_frames(str(tmp_path / "3.png"), 6)) == 1
    assert len(clip_frames("scene:demo", 7)) == 7


def test_a_frame_is_scaled_to_its_tiles(clip: Path) -> None:
    sampled = ClipFrame(str(clip)).read(2)
    assert sampled.image.shape[0] * sampled.image.shape[1] <= 2 * 32 * 32
    assert (sampled.width_px, sampled.height_px) == (96, 64)


def test_each_frame_has_some_of_the_questions_and_the_last_of_a_clip_are_held_out(clip: Path) -> None:
    lessons = plan_clips([str(clip)], 20, QUESTIONS, 64, seed=1)
    repeat = plan_clips([str(clip)], 20, QUESTIONS, 64, seed=1)
    assert [planned_lesson.held_out for planned_lesson in lessons] == [
        planned_lesson.held_out for planned_lesson in repeat
    ]
    loaded = [(planned_lesson.load(), planned_lesson.held_out) for planned_lesson in lessons]
    assert all(lesson is not None and len(lesson.questions) == QUESTIONS_A_FRAME for lesson, _ in loaded)
    assert len({lesson.questions for lesson, _ in loaded if lesson}) > 10
    training_means = [lesson.image.mean() for lesson, held_out in loaded if lesson and not held_out]
    held_out_means = [lesson.image.mean() for lesson, held_out in loaded if lesson and held_out]
    assert len(held_out_means) == 20 // HELD_OUT_PART
    assert max(training_means) < min(held_out_means)
    assert training_means != sorted(training_means)


def test_of_many_pictures_some_are_held_out(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(10)]
    for path, frame in zip(paths, numbered(10), strict=True):
        Image.fromarray(frame).save(path)
    lessons = plan_clips([str(path) for path in paths], 160, QUESTIONS, 64, seed=1)
    assert [lesson.held_out for lesson in lessons].count(True) == 2


def test_a_frame_that_cannot_be_read_is_left_out(clip: Path) -> None:
    lessons = plan_clips([str(clip)], 4, QUESTIONS, 64, seed=1)
    clip.unlink()
    assert lessons[0].load() is None


def test_live_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError):
        clip_frames("nosuch.mp4", 3)


def labels_of(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_labels_are_lessons_with_boxes_in_the_pixels_that_the_frame_has_now(tmp_path: Path, clip: Path) -> None:
    Image.fromarray(np.zeros((640, 960, 3), np.uint8)).save(tmp_path / "large.png")
    lines = [
        {"image": "large.png", "question": "Where?", "boxes": [[0, 320, 480, 640]], "answers": ["there"], "id": 3},
        {"image": "large.png", "question": "And this?", "boxes": [[480, 0, 960, 320]], "kind": "own"},
        {"video": "clip.mp4", "question": "What?", "boxes": [[0, 0, 32, 32]]},
        {"frames": ["large.png", "clip.mp4"], "question": "Late?", "boxes": [[0, 0, 32, 32]]},
    ]
    plan = plan_labels(read_labels(labels_of(tmp_path, "", *lines), 9, 1), 6, seed=1)
    lessons = {lesson.questions: lesson for planned_lesson in plan if (lesson := planned_lesson.load()) is not None}
    assert set(lessons) == {("Where?", "And this?"), ("What?",), ("Late?",)}
    large = lessons["Where?", "And this?"]
    assert large.image.shape == (64, 96, 3)
    assert large.boxes == (((0, 32, 48, 64),), ((48, 0, 96, 32),))
    assert lessons["What?",].image.mean() == pytest.approx(20 + 4 * 43.75, abs=6)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 of .* it is not JSON"),
        ("[]", "line 1 of .* it is no JSON object"),
        ({"image": "a.png", "question": "?", "boxes": [[0, 0, 1, 1]], "box": 1}, "unknown field 'box'; there are"),
        ({"question": "?", "boxes": [[0, 0, 1, 1]]}, "needs one of image, frames and video, and has none"),
        ({"image": "a.png", "video": "b", "question": "?"}, "has image and video; name one"),
        ({"image": "a.png", "boxes": [[0, 0, 1, 1]]}, 'it needs "question", a text; got None'),
        ({"image": 3, "question": "?", "boxes": [[0, 0, 1, 1]]}, 'it needs "image", a text; got 3'),
        (
            {"frames": [], "question": "?", "boxes": [[0, 0, 1, 1]]},
            'it needs "frames", a list of at least one text',
        ),
        ({"image": "no.png", "question": "?", "boxes": [[0, 0, 1, 1]]}, "there is no file .*no.png"),
        ({"image": "a.png", "question": "?"}, r'it needs "boxes", a list of \[left'),
        ({"image": "a.png", "question": "?", "boxes": [[0, 0, 1]]}, r"a box is \[left, top, right, bottom\] in pixels"),
        ({"image": "a.png", "question": "?", "boxes": [[5, 0, 1, 1]]}, "left of its right"),
        ("", "holds no question; write one JSON object a line"),
    ],
)
def test_lines_that_are_no_labels_are_refused_in_one_line(tmp_path: Path, line: object, message: str) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(OptionError, match=message) as refused:
        read_labels(labels_of(tmp_path, line), 9, 1)
    assert "\n" not in str(refused.value)


def test_pictures_of_coco_are_drawn_at_random_with_all_that_is_in_them(tmp_path: Path) -> None:
    folder = coco(tmp_path, "train2017", pictures=9)
    labels = read_labels(folder, 4, 1)
    assert labels == read_labels(folder, 4, 1) != read_labels(folder, 4, 2)
    assert len({label.path for label in labels}) == 4
    assert {label.question for label in labels} == {"Where is the dog?", "Where is the person?"}
    (folder / "train2017").rename(folder / "val2017")
    (folder / "annotations" / "instances_train2017.json").rename(folder / "annotations" / "instances_val2017.json")
    assert len(read_labels(folder / "annotations" / "instances_val2017.json", 99, 1)) == 18
    lessons = [
        plan.load() for plan in plan_labels(read_labels(folder / "annotations/instances_val2017.json", 2, 1), 6, 1)
    ]
    assert [lesson is not None and lesson.image.shape for lesson in lessons] == [(64, 64, 3)] * 2


def test_other_folders_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot read .*instances_train2017.json: No such file"):
        read_labels(tmp_path, 4, 1)
    vqa_v2(tmp_path, "train2014")
    with pytest.raises(OptionError, match=r"is VQAv2, which has no boxes; give COCO's folder; arr_coc.finetune learns"):
        read_labels(tmp_path, 4, 1)


def test_a_label_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="No such file or directory; give a JSONL file"):
        read_labels(tmp_path / "nosuch.jsonl", 9, 1)
