"""A user’s own questions, pictures and videos, in a file as `arr_coc.adaptation.question_lines` describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

from PIL import Image as Pillow

from arr_coc.adaptation.question_lines import QuestionLine, read_question_lines
from arr_coc.errors import OptionError, ShapeError
from arr_coc.model import FRAMES_PER_S
from arr_coc.qwen.preprocess import to_rgb
from evaluation.errors import QuestionsError
from evaluation.frames import Sampling, frames_of
from training.clips.truth import Box, Image, Sample

Rule: TypeAlias = Callable[[Sequence[str], str], float]
"""(right answers, answer) → its score in [0, 1]."""


@dataclass(frozen=True, slots=True)
class EvalQuestion:
    """A question about a picture or a clip.

    `frames` uint8 RGB [H, W, 3] at `times_s`. `answers`: any of them is right; ten of them are people's votes (see
    `scoring`). `facts`: phrases that a description must hold. `boxes` and `distractors`: for each frame, in its pixels,
    things that are asked about and things that must not draw the tokens. `group` names questions about successive
    frames of one clip; `before` are the frames of the group's earlier questions, at `before_s`. `stale`: answers that
    were right for the same question earlier in the clip.

    Of a public benchmark: `rule` scores the answer (as `scoring` does, if None); without `answers` and `facts` the
    score is the IoU of what is shown with `boxes`. `tags` are the groups of its report. `clip` names what several
    questions are about, of which each is a separate stream. `seen_s`: time of the group's question before; `frames` are
    all up to now, and a stream has had those until then.
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
    rule: Rule | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    clip: str = ""
    seen_s: float | None = None

    @property
    def asks_places(self) -> bool:
        """True if its score is where the tokens lie, not what is answered."""
        return not self.answers and not self.facts and bool(self.boxes)

    def load(self) -> EvalQuestion:
        """Return itself: its frames are there."""
        return self

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


class PendingQuestion(Protocol):
    """A question whose frames may be read once they are needed."""

    @property
    def id(self) -> str:
        """Its name within the suite."""

    @property
    def group(self) -> str:
        """As of `EvalQuestion`."""

    def load(self) -> EvalQuestion:
        """With its frames. Raises QuestionsError if they cannot be read."""


@dataclass(frozen=True, slots=True)
class FileQuestion:
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
                frames, times_s = frames_of(self.paths[0], Sampling(video_frames, middles=True))
            else:
                frames = tuple(to_rgb(path) for path in self.paths)
                times_s = tuple(index / FRAMES_PER_S for index in range(len(frames)))
        except (OSError, ShapeError) as error:
            raise QuestionsError(f"question {self.id}: {error}; remove its line, or mend the file") from error
        boxes = ((),) * (len(frames) - 1) + (self.boxes,) if self.boxes else ()
        return EvalQuestion(self.id, self.kind, self.text, self.answers, frames, times_s, boxes=boxes)


def read_questions(path: Path, *, answered: bool = True) -> list[FileQuestion]:
    """All lines of a file, checked before anything is run. Unless they must be `answered`, they may lack answers.

    Raises QuestionsError, naming the line, for what is no JSON object, lacks a field, has one that is not known, or
    names a file that is missing or is no picture; and if the file cannot be read or holds nothing.
    """
    try:
        questions = read_question_lines(path, partial(_parse_line, answered=answered))
    except OptionError as error:
        raise QuestionsError(str(error)) from error
    duplicate = first_twice(question.id for question in questions)
    if duplicate is not None:
        raise QuestionsError(f'{path.name}: two questions have the id "{duplicate}"; give each its own, or none')
    return questions


def _parse_line(line: QuestionLine, *, answered: bool) -> FileQuestion:
    paths = line.paths()
    sizes = {_size(path) for path in paths} if line.media_field != "video" else set()
    if len(sizes) > 1:
        raise QuestionsError(f"its frames have different sizes ({sorted(sizes)}); frames of one clip have one size")
    return FileQuestion(
        id=str(line.fields.get("id", line.number)),
        kind=line.text("kind", "own"),
        text=line.text("question"),
        answers=line.texts("answers") if answered or "answers" in line.fields else (),
        paths=paths,
        is_video=line.media_field == "video",
        boxes=line.boxes(),
    )


def _size(path: Path) -> tuple[int, int]:
    try:
        with Pillow.open(path) as picture:
            return picture.size
    except OSError as error:
        raise QuestionsError(f"{path} is not an image that can be read; convert it to PNG or JPEG") from error


def first_twice(names: Iterable[str]) -> str | None:
    """The first name that comes more than once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def load_questions(questions: list[FileQuestion], video_frames: int) -> Iterator[EvalQuestion]:
    """Each question with its pictures, one after the other."""
    return (question.load(video_frames) for question in questions)
