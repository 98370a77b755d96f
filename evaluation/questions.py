"""A user’s own questions, pictures and videos, in a file as `stream.adaptation.question_lines` describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image as Pillow

from arr_coc.errors import ShapeError
from arr_coc.model import FRAMES_PER_S
from arr_coc.qwen.preprocess import to_rgb
from arr_coc.types import NS_PER_S, FramePlanes, FrameStamp
from arr_coc.video.texture_updater import TextureUpdater
from evaluation.errors import QuestionsError
from stream.adaptation.question_lines import QuestionLine, read_question_lines
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.errors import ConfigError
from stream.media import SourceFrame
from stream.sources.factory import open_source
from training.clips.truth import Box, Image, Sample


@dataclass(frozen=True, slots=True)
class EvalQuestion:
    """A question about a picture or a clip.

    `frames` uint8 RGB [H, W, 3] at `times_s`. `answers`: any of them is right; ten of them are people's votes (see
    `scoring`). `facts`: phrases that a description must hold. `boxes` and `distractors`: for each frame, in its pixels,
    things that are asked about and things that must not draw the tokens. `group` names questions about successive
    frames of one clip; `before` are the frames of the group's earlier questions, at `before_s`. `stale`: answers that
    were right for the same question earlier in the clip.
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
    stale: tuple[str, ...] = ()

    @classmethod
    def of(cls, index: int, sample: Sample) -> EvalQuestion:
        """The `index`-th sample of a suite."""
        return cls(
            id=str(index),
            kind=sample.part or sample.kind,
            text=sample.question,
            answers=(sample.answer,),
            frames=sample.clip.frames,
            times_s=sample.clip.times_s,
            facts=sample.facts if sample.kind == "describe" else (),
            boxes=sample.boxes,
            distractors=sample.distractors,
            group=sample.group,
            stale=sample.stale,
        )


def frames_of(path: Path, count: int) -> tuple[tuple[Image, ...], tuple[float, ...]]:
    """`count` frames uint8 RGB [H, W, 3], the middle ones of as many equal parts, and their times in seconds.

    A video with fewer frames gives all of them. Raises SourceError if it cannot be read.
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
        """With its pictures; `video_frames` of a video. Raises QuestionsError if they cannot be read."""
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
    names a file that is missing or is no picture; and if the file cannot be read or holds nothing.
    """
    try:
        asked = read_question_lines(path, _asked)
    except ConfigError as error:
        raise QuestionsError(str(error)) from error
    twice = _first_twice([one.id for one in asked])
    if twice is not None:
        raise QuestionsError(f'{path.name}: two questions have the id "{twice}"; give each its own, or none')
    return asked


def _asked(line: QuestionLine) -> Asked:
    paths = line.paths()
    sizes = {_size(path) for path in paths} if line.shown != "video" else set()
    if len(sizes) > 1:
        raise QuestionsError(f"its frames have different sizes ({sorted(sizes)}); frames of one clip have one size")
    return Asked(
        id=str(line.fields.get("id", line.number)),
        kind=line.text("kind", "own"),
        text=line.text("question"),
        answers=line.texts("answers"),
        paths=paths,
        is_video=line.shown == "video",
        boxes=line.boxes(),
    )


def _size(path: Path) -> tuple[int, int]:
    try:
        with Pillow.open(path) as picture:
            return picture.size
    except OSError as error:
        raise QuestionsError(f"{path} is not an image that can be read; convert it to PNG or JPEG") from error


def _first_twice(names: list[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def loaded(asked: list[Asked], video_frames: int) -> Iterator[EvalQuestion]:
    """Each question with its pictures, one after the other."""
    return (one.load(video_frames) for one in asked)
