"""Boxes to learn from, in a file: `read_labels`, `plan_labels`.

| field of a line | value |
| --- | --- |
| `image`, `frames` or `video` | a path, a list of paths in order, or a path; relative to the file |
| `question` | the text |
| `boxes` | what is asked about in the newest frame: [[left, top, right, bottom], ...] in its pixels |
| `answers`, `id`, `kind` | as in files of evaluation questions; not used here |
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.adaptation.cases import Box
from arr_coc.adaptation.lessons import Lesson, PlannedLesson
from stream.adaptation.clips import HELD_OUT_PART, ClipFrame, clip_frames
from stream.errors import ConfigError, SourceError

SHOWN = ("image", "frames", "video")
FIELDS = frozenset({*SHOWN, "question", "boxes", "answers", "id", "kind"})

VIDEO_FRAMES = 4
"""Of a video, evaluation shows so many frames by default; the boxes are in the last of them."""


@dataclass(frozen=True, slots=True)
class Label:
    """One line: what is asked about a picture, or about the last of a video's frames, and where that is."""

    path: Path
    is_video: bool
    question: str
    boxes: tuple[Box, ...]


def read_labels(path: Path) -> list[Label]:
    """All lines of a file. Raises ConfigError, naming the line, for what is wrong, and for a file without any."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read {path}: {reason}", "give a JSONL file with one question a line") from error
    labels = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                labels.append(_parse(line, path.parent))
            except ValueError as error:
                raise ConfigError(f"line {number} of {path}: {error}") from None
    if not labels:
        raise ConfigError(f"{path} holds no question", "write one JSON object a line, or leave --boxes out")
    return labels


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
        frame = clip_frames(path, VIDEO_FRAMES)[-1] if labels[0].is_video else ClipFrame(path)
        sampled = frame.read(max_tiles)
    except (SourceError, IndexError):
        return None
    across = sampled.image.shape[1] / sampled.width_px
    down = sampled.image.shape[0] / sampled.height_px
    boxes = tuple(
        tuple((left * across, top * down, right * across, bottom * down) for left, top, right, bottom in label.boxes)
        for label in labels
    )
    return Lesson(sampled.image, tuple(label.question for label in labels), boxes)


def _parse(line: str, folder: Path) -> Label:
    """Raises ValueError, in words."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error}); write one object a line") from None
    if not isinstance(fields, dict):
        raise ValueError('it is no JSON object; write {"image": ..., "question": ..., "boxes": [...]}')
    unknown = sorted(fields.keys() - FIELDS)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(FIELDS))}")
    shown = [name for name in SHOWN if name in fields]
    if len(shown) != 1:
        raise ValueError(f"it needs one of image, frames and video, and has {' and '.join(shown) or 'none'}; name one")
    question = fields.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f'it needs "question", a text; got {question!r}')
    return Label(_path(fields, shown[0], folder), shown[0] == "video", question, _boxes(fields.get("boxes")))


def _path(fields: dict[str, Any], name: str, folder: Path) -> Path:
    value = fields[name][-1] if name == "frames" and isinstance(fields[name], list) and fields[name] else fields[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f'"{name}" must name a file; got {fields[name]!r}')
    path = folder / Path(value).expanduser()
    if not path.is_file():
        raise ValueError(f'there is no file {path}; put it there, or correct the path in "{name}"')
    return path


def _boxes(value: Any) -> tuple[Box, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f'it needs "boxes", a list of [left, top, right, bottom]; got {value!r}')
    boxes = []
    for one in value:
        numbers = isinstance(one, list) and len(one) == len(("left", "top", "right", "bottom"))
        if not numbers or not all(isinstance(edge, (int, float)) and math.isfinite(edge) for edge in one):
            raise ValueError(f"a box is [left, top, right, bottom] in pixels; got {one!r}")
        left, top, right, bottom = one
        if left >= right or top >= bottom:
            raise ValueError(
                f"a box is [left, top, right, bottom], left of its right and above its bottom; got {one!r}"
            )
        boxes.append((float(left), float(top), float(right), float(bottom)))
    return tuple(boxes)
