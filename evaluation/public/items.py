"""Questions of a public benchmark: what is asked, what is shown, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from arr_coc.errors import ShapeError, counted
from arr_coc.texture.pictures import to_rgb
from evaluation.errors import QuestionsError
from evaluation.frames import Sampling, frames_of, scaled_down
from evaluation.public.subtitles import before_question
from evaluation.questions import EvalQuestion, Rule
from training.clips.truth import Box

QWEN_TILES = 147
"""Tiles of a frame by the published Qwen evaluations of StreamingBench and OVO-Bench: 360 × 420 pixels."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a reader.

    `folder`: the data, as published. `split`: one of the benchmark's. `frames` and `tiles`: in place of the benchmark's
    own numbers. `context_s`: so much of a video before the question's time, all if None. `subtitles`: with them.
    `bare`: a question about a picture without the words that ask for a short answer.
    """

    folder: Path
    split: str
    frames: int | None = None
    tiles: int | None = None
    context_s: float | None = None
    subtitles: bool = False
    bare: bool = False

    def sampling(self, published: Sampling) -> Sampling:
        """The published one with the requested numbers."""
        if self.frames is not None:
            published = replace(published, frames=self.frames, fps=None)
        return published if self.tiles is None else replace(published, tiles=self.tiles)

    def start_s(self, end_s: float) -> float:
        """Begin of the part of a video that is shown of a question at `end_s`."""
        return 0.0 if self.context_s is None else max(0.0, end_s - self.context_s)


@dataclass(frozen=True, slots=True)
class PublicQuestion:
    """One question; its picture or frames are read when it is its turn.

    `path` is a picture, or with `sampling` a video of which the part from `start_s` to `end_s` is shown, all of it if
    that is None. `tiles`: largest size of a picture. `boxes` are in pixels of the picture as stored. `group` and
    `clip` as of `EvalQuestion`; `seen_s`: end of the group's question before. `subtitles`: a file whose lines at the
    times of the frames stand before the question.
    """

    id: str
    kind: str
    text: str
    answers: tuple[str, ...]
    path: Path
    rule: Rule | None = None
    sampling: Sampling | None = None
    start_s: float = 0.0
    end_s: float | None = None
    tiles: int | None = None
    boxes: tuple[Box, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    clip: str = ""
    group: str = ""
    seen_s: float | None = None
    subtitles: Path | None = None

    def load(self) -> EvalQuestion:
        """With its frames. Raises QuestionsError, naming the question, if they cannot be read."""
        try:
            if self.sampling is not None:
                frames, times_s = _frames(self.path, self.sampling, self.start_s, self.end_s)
                boxes: tuple[tuple[Box, ...], ...] = ()
            else:
                image = to_rgb(self.path)
                frames, times_s = (scaled_down(image, self.tiles),), (0.0,)
                down, right = (now / then for now, then in zip(frames[0].shape[:2], image.shape[:2], strict=True))
                boxes = (tuple((x0 * right, y0 * down, x1 * right, y1 * down) for x0, y0, x1, y1 in self.boxes),)
        except (OSError, ShapeError) as error:
            raise QuestionsError(f"question {self.id}: {error}; remove its entry, or mend the file") from error
        text = self.text
        if self.subtitles is not None:
            text = before_question(self.subtitles, times_s, text)
        return EvalQuestion(
            id=self.id,
            kind=self.kind,
            text=text,
            answers=self.answers,
            frames=frames,
            times_s=times_s,
            boxes=boxes if self.boxes else (),
            group=self.group,
            rule=self.rule,
            tags=self.tags,
            clip=self.clip,
            seen_s=self.seen_s,
        )


_frames = lru_cache(maxsize=1)(lambda *part: frames_of(*part))
"""Frames of the newest part: of a video several questions are asked in a row."""


def as_streams(questions: Sequence[PublicQuestion]) -> list[PublicQuestion]:
    """Questions of a group together, in the order of their `end_s`; each knows the time of the one before.

    The groups keep the order in which they first come.
    """
    order = {group: place for place, group in enumerate(dict.fromkeys(question.group for question in questions))}
    streams: list[PublicQuestion] = []
    for _, clip in groupby(
        sorted(questions, key=lambda question: (order[question.group], question.end_s or 0.0)),
        lambda question: question.group,
    ):
        seen_s: float | None = None
        for question in clip:
            streams.append(replace(question, seen_s=seen_s))
            seen_s = question.end_s
    return streams


def present(questions: Sequence[PublicQuestion], remedy: str, *, skip: bool) -> list[PublicQuestion]:
    """The questions whose file is there.

    Raises QuestionsError with the number of missing files and the remedy if one is missing, unless `skip`; and if none
    is there.
    """
    files = {question.path for question in questions}
    missing = {path for path in files if not path.is_file()}
    if missing and (not skip or missing == files):
        first = next(question.path for question in questions if question.path in missing)
        leave = "" if skip else ", or leave them out with --skip-missing"
        raise QuestionsError(
            f"{len(missing)} of {counted(len(files), 'file')} are missing, the first is {first}; {remedy}{leave}"
        )
    return [question for question in questions if question.path not in missing]
