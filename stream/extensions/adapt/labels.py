"""Boxes to learn from, in a file as `question_lines` describes, or COCO's: `read_labels`, `plan_labels`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from arr_coc.adaptation.cases import Box
from arr_coc.adaptation.lessons import Lesson, PlannedLesson
from arr_coc.adaptation.published import CocoObjects, check_pictures, coco_split, is_vqa_v2, read_coco
from arr_coc.adaptation.question_lines import QuestionLine, read_question_lines
from arr_coc.errors import OptionError
from stream.errors import SourceError
from stream.extensions.adapt.clips import HELD_OUT_PART, ClipFrame, clip_frames


@dataclass(frozen=True, slots=True)
class Label:
    """One line: the question about a picture, or about the last of a video's frames, and the boxes of the answer."""

    path: Path
    is_video: bool
    question: str
    boxes: tuple[Box, ...]


def read_labels(path: Path, pictures: int, seed: int) -> list[Label]:
    """All lines of a file, or what is to be found in so many pictures of COCO, drawn at random.

    Raises OptionError, naming the line, for an invalid line, and for a file without any; naming the file, if COCO
    cannot be read.
    """
    coco = coco_split(path)
    if coco is None:
        return read_question_lines(path, _label)
    folder, split = coco
    if is_vqa_v2(folder) and not (folder / "annotations").is_dir():
        raise OptionError(
            f"{folder} is VQAv2, which has no boxes", "give COCO's folder; arr_coc.finetune learns from VQAv2"
        )
    by_picture: dict[int, list[CocoObjects]] = {}
    for objects in read_coco(folder, split):
        if any(left < right and top < bottom for left, top, right, bottom in objects.boxes):  # a few hold nothing
            by_picture.setdefault(objects.picture, []).append(objects)
    drawn = np.random.default_rng(seed).permutation(list(by_picture))[:pictures]
    found = [objects for picture in drawn for objects in by_picture[int(picture)]]
    check_pictures(objects.path for objects in found)
    return [Label(objects.path, False, objects.question, objects.boxes) for objects in found]


def plan_labels(labels: Sequence[Label], max_tiles: int, seed: int) -> list[PlannedLesson]:
    """One lesson for each picture, with all that is asked about it, in an order by chance."""
    by_picture: dict[tuple[Path, bool], list[Label]] = {}
    for label in labels:
        by_picture.setdefault((label.path, label.is_video), []).append(label)
    order = np.random.default_rng(seed).permutation(len(by_picture))
    groups = list(by_picture.values())
    return [
        PlannedLesson(partial(_lesson, groups[index], max_tiles), place % HELD_OUT_PART == HELD_OUT_PART - 1)
        for place, index in enumerate(order)
    ]


def _lesson(labels: Sequence[Label], max_tiles: int) -> Lesson | None:
    """The picture, with its boxes in the pixels that it has now."""
    path = str(labels[0].path)
    try:
        # the number of frames that evaluation shows of a video by default; the boxes are in the last of them
        if labels[0].is_video:
            frame = clip_frames(path, 4)[-1]
        else:
            frame = ClipFrame(path)
        sample = frame.read(max_tiles)
    except (SourceError, IndexError):
        return None
    across = sample.image.shape[1] / sample.width_px
    down = sample.image.shape[0] / sample.height_px
    boxes = tuple(
        tuple((left * across, top * down, right * across, bottom * down) for left, top, right, bottom in label.boxes)
        for label in labels
    )
    return Lesson(sample.image, tuple(label.question for label in labels), boxes)


def _label(line: QuestionLine) -> Label:
    """Raises ValueError, in words."""
    boxes = line.boxes()
    if not boxes:
        raise ValueError('it needs "boxes", a list of [left, top, right, bottom] in pixels; it has none')
    return Label(line.paths()[-1], line.media_field == "video", line.text("question"), boxes)
