"""A user's own questions: one JSON object a line, about pictures, frames or videos on disk.

| field | value |
| --- | --- |
| `image`, `frames` or `video` | a path, a list of paths in order, or a path; relative to the question file |
| `question` | the text |
| `answers` | list of texts; ten of them count as ten people's votes |
| `id`, `kind` | optional; the line number and "own" when absent |
| `boxes` | optional; what is asked about in the newest frame: [[left, top, right, bottom], …] in pixels |
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image as Pillow

from arr_coc.errors import ShapeError
from arr_coc.model import FRAMES_PER_S
from arr_coc.qwen.preprocess import to_rgb
from evaluation.errors import QuestionsError
from evaluation.question import Question
from evaluation.video import frames_of
from training.truth import Box

SHOWN = ("image", "frames", "video")
FIELDS = {*SHOWN, "question", "answers", "id", "kind", "boxes"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One line of a question file; its pictures are read when it is its turn."""

    id: str
    kind: str
    text: str
    answers: tuple[str, ...]
    paths: tuple[Path, ...]
    is_video: bool
    boxes: tuple[Box, ...]

    def load(self, video_frames: int) -> Question:
        """With its pictures; of a video, so many frames. Raises QuestionsError where they cannot be read."""
        try:
            if self.is_video:
                frames, times_s = frames_of(self.paths[0], video_frames)
            else:
                frames = tuple(to_rgb(path) for path in self.paths)
                times_s = tuple(index / FRAMES_PER_S for index in range(len(frames)))
        except (OSError, ShapeError) as error:
            raise QuestionsError(f"question {self.id}: {error}; remove its line, or mend the file") from error
        boxes = ((),) * (len(frames) - 1) + (self.boxes,) if self.boxes else ()
        return Question(self.id, self.kind, self.text, self.answers, frames, times_s, boxes=boxes)


def read_questions(path: Path) -> list[Asked]:
    """All lines of a file, checked before anything is run.

    Raises QuestionsError, naming the line, for what is no JSON object, lacks a field, has one that is not known, or
    names a file that is not there or is no picture; and where the file cannot be read or holds nothing.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise QuestionsError(f"cannot read {path}: {reason}; give a JSONL file with one question a line") from error
    asked = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                asked.append(_parse(line, number, path.parent))
            except QuestionsError as error:
                raise QuestionsError(f"line {number} of {path.name}: {error}") from None
    if not asked:
        raise QuestionsError(f"{path} holds no question; write one JSON object a line")
    twice = _first_twice([one.id for one in asked])
    if twice is not None:
        raise QuestionsError(f'{path.name}: two questions have the id "{twice}"; give each its own, or none')
    return asked


def _parse(line: str, number: int, folder: Path) -> Asked:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise QuestionsError(f"it is not JSON ({error}); write one object a line") from None
    if not isinstance(fields, dict):
        raise QuestionsError('it is no JSON object; write {"image": …, "question": …, "answers": […]}')
    unknown = sorted(fields.keys() - FIELDS)
    if unknown:
        raise QuestionsError(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(FIELDS))}")
    shown = [name for name in SHOWN if name in fields]
    if len(shown) != 1:
        raise QuestionsError(
            f"it needs one of image, frames and video, and has {' and '.join(shown) or 'none'}; name one"
        )
    return Asked(
        id=str(fields.get("id", number)),
        kind=_text(fields, "kind", "own"),
        text=_text(fields, "question"),
        answers=_texts(fields, "answers"),
        paths=_paths(fields, shown[0], folder),
        is_video=shown[0] == "video",
        boxes=_boxes(fields.get("boxes", [])),
    )


def _text(fields: dict[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str) or not value.strip():
        raise QuestionsError(f'it needs "{name}", a text; got {value!r}')
    return value


def _texts(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    values = fields.get(name)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise QuestionsError(f'it needs "{name}", a list of at least one text; got {values!r}')
    return tuple(values)


def _paths(fields: dict[str, Any], name: str, folder: Path) -> tuple[Path, ...]:
    names = _texts(fields, name) if name == "frames" else (_text(fields, name),)
    paths = tuple(folder / Path(one).expanduser() for one in names)
    for path in paths:
        if not path.is_file():
            raise QuestionsError(f'there is no file {path}; put it there, or correct the path in "{name}"')
    sizes = {_size(path) for path in paths} if name != "video" else set()
    if len(sizes) > 1:
        raise QuestionsError(f"its frames have different sizes ({sorted(sizes)}); frames of one clip have one size")
    return paths


def _size(path: Path) -> tuple[int, int]:
    try:
        with Pillow.open(path) as picture:
            return picture.size
    except OSError as error:
        raise QuestionsError(f"{path} is not an image that can be read; convert it to PNG or JPEG") from error


def _boxes(value: Any) -> tuple[Box, ...]:
    numbers = isinstance(value, list) and all(
        isinstance(box, list) and len(box) == 4 and all(isinstance(edge, (int, float)) for edge in box) for box in value
    )
    if not numbers or any(box[0] >= box[2] or box[1] >= box[3] for box in value):
        raise QuestionsError(f'"boxes" holds [left, top, right, bottom] in pixels, got {value!r}')
    return tuple((float(box[0]), float(box[1]), float(box[2]), float(box[3])) for box in value)


def _first_twice(names: list[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def loaded(asked: list[Asked], video_frames: int) -> Iterator[Question]:
    """Each question with its pictures, one after the other."""
    return (one.load(video_frames) for one in asked)
