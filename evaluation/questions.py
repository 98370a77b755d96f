"""A user’s own questions, pictures and videos.

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

import numpy as np
from PIL import Image as Pillow

from arr_coc.errors import ShapeError
from arr_coc.model import FRAMES_PER_S
from arr_coc.qwen.preprocess import to_rgb
from arr_coc.types import NS_PER_S, FramePlanes, FrameStamp
from arr_coc.video.texture_updater import TextureUpdater
from evaluation.errors import QuestionsError
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.media import SourceFrame
from stream.sources.factory import open_source
from training.clips.truth import Box, Image, Sample


@dataclass(frozen=True, slots=True)
class EvalQuestion:
    """A question about a picture or a clip.

    `frames` uint8 RGB [H, W, 3] at `times_s`. `answers`: any of them is right; ten of them are people's votes (see
    `scoring`). `facts`: phrases that a description must hold. `boxes` and `distractors`: for each frame, in its pixels,
    what is asked about and what must not draw the tokens. `group` names questions that ask the same of successive
    frames; `before` are the frames of the group's earlier questions, at `before_s`.
    """

    id: str
    kind: str
    text: str
    answers: tuple[str, ...]
    frames: tuple[Image, ...]
    times_s: tuple[float, ...]
    facts: tuple[str, ...] = ()
    boxes: tuple[tuple[Box, ...], ...] = ()
    distractors: tuple[tuple[Box, ...], ...] = ()
    group: str = ""
    before: tuple[Image, ...] = ()
    before_s: tuple[float, ...] = ()

    @classmethod
    def of(cls, index: int, sample: Sample) -> EvalQuestion:
        """The `index`-th sample of a suite."""
        return cls(
            id=str(index),
            kind=sample.kind,
            text=sample.question,
            answers=(sample.answer,),
            frames=sample.clip.frames,
            times_s=sample.clip.times_s,
            facts=sample.facts if sample.kind == "describe" else (),
            boxes=sample.boxes,
            distractors=sample.distractors,
            group=sample.group,
        )


def frames_of(path: Path, count: int) -> tuple[tuple[Image, ...], tuple[float, ...]]:
    """`count` frames uint8 RGB [H, W, 3], the middle ones of as many equal parts, and their times in seconds.

    A video with fewer frames gives all of them. Raises SourceError where it cannot be read.
    """
    frames = sum(1 for _ in _decoded(path))
    parts = min(count, frames)
    wanted = {int((index + 0.5) * frames / parts) for index in range(parts)}
    chosen = [
        (_rgb(frame.planes), frame.media_ns / NS_PER_S) for frame in _decoded(path) if frame.frame_index in wanted
    ]
    return tuple(image for image, _ in chosen), tuple(at_s for _, at_s in chosen)


def _decoded(path: Path) -> Iterator[SourceFrame]:
    with open_source(str(path), CaptureConfig(), MonotonicClock()) as source:
        yield from (frame for frame in source.frames() if isinstance(frame, SourceFrame))


def _rgb(planes: FramePlanes) -> Image:
    """As the texture store converts it."""
    updater = TextureUpdater()
    updater.process(planes, FrameStamp(0, 0, 0))
    with updater.lease() as view:
        image: Image = np.array(view.read(0)[: planes.height_px, : planes.width_px])
    updater.close()
    return image


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

    def load(self, video_frames: int) -> EvalQuestion:
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
        return EvalQuestion(self.id, self.kind, self.text, self.answers, frames, times_s, boxes=boxes)


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


def loaded(asked: list[Asked], video_frames: int) -> Iterator[EvalQuestion]:
    """Each question with its pictures, one after the other."""
    return (one.load(video_frames) for one in asked)
