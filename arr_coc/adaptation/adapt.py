"""`Adaptation`: train an allocator to look where the model's attention looks, from its answers about pictures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch

from arr_coc.adaptation.accuracy import measure
from arr_coc.adaptation.cases import AllocatorCase, Batches, Embedder
from arr_coc.adaptation.folder import AdaptFolder
from arr_coc.adaptation.lessons import HELD_OUT, PlannedLesson, TaughtPicture, cases_of_pictures
from arr_coc.adaptation.losses import box_loss
from arr_coc.adaptation.teacher import AttentionTeacher
from arr_coc.adaptation.trainer import MapObjective, Trainer, new_layer
from arr_coc.adaptation.training_run import Length
from arr_coc.errors import OptionError, counted
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.knowing import DEFAULT_SCORER, QueryScorer
from arr_coc.relevance.profiles import Profile

LEAST_PICTURES = 8
"""Fewer teach nothing that holds for others, and none could be held out."""

ASKING = "asking the model"
LEARNING = "learning"
MEASURING = "measuring"


class AdaptProgress(Protocol):
    """Display of an adaptation to a person, who may end it."""

    def begin(self, phase: str, total: int | None) -> None:
        """Begin a phase of `total` pictures or steps; None if its length is a time."""
        ...

    def advance(self, count: int) -> None:
        """Report that `count` pictures or steps of the phase are done."""
        ...

    @property
    def stopping(self) -> bool:
        """True to end the adaptation as soon as its results are saved."""
        ...


@dataclass(frozen=True, slots=True)
class AdaptOptions:
    """Settings of an adaptation: `steps` of learning, or `minutes` in all; `channels`: profile that the scorers see."""

    steps: int = 2000
    minutes: float | None = None
    seed: int = 1
    scorer: QueryScorer = DEFAULT_SCORER
    channels: Profile = "core13"


@dataclass(frozen=True, slots=True)
class AdaptResult:
    """Figures on pictures that nothing was learned from, before and after, as `found.measure` gives them.

    `pictures` were learned from and `held_out` measured on, with `questions` and `held_out_questions` about them, of
    which `labelled` are compared with boxes, the others with the model's own attention; `unread` could not be read.
    """

    before: dict[str, float]
    after: dict[str, float]
    pictures: int
    questions: int
    held_out: int
    held_out_questions: int
    labelled: int
    unread: int
    steps: int
    minutes: float


class Adaptation:
    """The making of one allocator for `qwen` in a folder; whatever ends it, the next run goes on from there."""

    def __init__(self, qwen: QwenVL, folder: AdaptFolder, options: AdaptOptions, progress: AdaptProgress) -> None:
        self._qwen = qwen
        self._folder = folder
        self._options = options
        self._progress = progress
        self._embed = Embedder(qwen)
        self._asked_s = 0.0
        self._unread_pictures = 0

    def run(self, lessons: Sequence[PlannedLesson], made_of: Mapping[str, str]) -> AdaptResult | None:
        """Ask, learn, measure; None if `progress` stops it, which leaves the folder unfinished.

        `made_of` as `AdaptFolder.begin` takes it. Raises as that and as `AttentionTeacher.attention`; OptionError if
        there is too little to learn from; OSError if the folder cannot be written.
        """
        self._folder.begin(made_of)
        pictures = self._ask(lessons)
        if self._progress.stopping:
            return None
        # there must be something to learn from and something to measure on; otherwise the next run begins anew
        training_count = sum(not picture.held_out for picture in pictures)
        if len(pictures) < LEAST_PICTURES or not (0 < training_count < len(pictures)):
            self._folder.remove_saved()
            raise OptionError(
                f"only {counted(len(pictures), 'frame')} of {len(lessons)} could be read, and at least "
                f"{LEAST_PICTURES} are needed to learn from",
                "give longer clips, or more of them",
            )
        trainer = self._learn(cases_of_pictures(pictures, held_out=False))
        if trainer.course.progress < 1:
            return None
        result = self._measured(pictures, trainer)
        self._folder.finish(made_of, asdict(result))
        return result

    def _ask(self, lessons: Sequence[PlannedLesson]) -> list[TaughtPicture]:
        """Return the pictures once the model was asked about them: those of an earlier run, and new ones."""
        pictures, count, self._asked_s = self._folder.load_pictures()
        self._progress.begin(ASKING, len(lessons))
        before_s = self._asked_s
        started_s = time.perf_counter()
        saved_s = started_s
        try:
            while count < len(lessons) and not self._progress.stopping and not self._asked_enough(pictures):
                self._progress.advance(count)
                if (picture := self._taught(lessons[count])) is not None:
                    pictures.append(picture)
                count += 1
                now_s = time.perf_counter()
                self._asked_s = before_s + now_s - started_s
                if now_s - saved_s > 30.0:
                    saved_s = now_s
                    self._folder.save_pictures(pictures, count, self._asked_s)
        finally:
            if count:
                self._folder.save_pictures(pictures, count, self._asked_s)
        self._progress.advance(count)
        self._unread_pictures = count - len(pictures)
        return pictures

    @cached_property
    def _teacher(self) -> AttentionTeacher:
        return AttentionTeacher(self._qwen)

    def _taught(self, plan: PlannedLesson) -> TaughtPicture | None:
        """Return the lesson's picture with the target relevance of its tiles; None if the picture cannot be read."""
        lesson = plan.load()
        if lesson is None:
            return None
        channels = self._options.channels
        if lesson.boxes is not None:
            return TaughtPicture.from_boxes(lesson, held_out=plan.held_out, channels=channels)
        return TaughtPicture.from_attention(self._teacher, lesson, held_out=plan.held_out, channels=channels)

    def _asked_enough(self, pictures: Sequence[TaughtPicture]) -> bool:
        limit = self._options.minutes
        # if time is limited, at most this share of it is spent on asking the model
        return limit is not None and len(pictures) >= LEAST_PICTURES and self._asked_s > 60 * limit * 0.5

    def _learn(self, cases: Sequence[AllocatorCase]) -> Trainer:
        """Train a new layer, or the checkpoint's, until the end or until it is to stop; it is saved in both cases."""
        options = self._options
        torch.manual_seed(options.seed)
        device = self._qwen.device
        layer = new_layer(self._qwen, options.scorer, options.channels).to(device)
        if options.minutes is None:
            remaining_minutes = None
        else:
            remaining_minutes = max(options.minutes - self._asked_s / 60, 0.0)
        if remaining_minutes is None:
            length = Length(0.0, options.steps)
        else:
            length = Length(remaining_minutes)
        trainer = Trainer(layer, self._folder.path, self._folder.path, length)
        if self._folder.has_checkpoint:
            trainer.course.resume(str(device))
        self._progress.begin(LEARNING, options.steps if remaining_minutes is None else None)
        rng = np.random.default_rng([options.seed, trainer.course.steps])
        objective = MapObjective(Batches(cases, self._embed, rng), box_loss)
        trainer.run(
            objective,
            on_step=lambda: self._progress.advance(trainer.course.steps),
            should_stop=lambda: self._progress.stopping,
        )
        return trainer

    def _measured(self, pictures: Sequence[TaughtPicture], trainer: Trainer) -> AdaptResult:
        cases = cases_of_pictures(pictures, held_out=True)
        self._progress.begin(MEASURING, None)
        before, after = (
            measure(realiser, cases, self._embed, levels=self._qwen.knows_levels)[HELD_OUT]
            for realiser in (RelevanceRealiser(channels=self._options.channels), trainer.layer.cpu().realiser)
        )
        training_pictures = [picture for picture in pictures if not picture.held_out]
        return AdaptResult(
            before=before,
            after=after,
            pictures=len(training_pictures),
            questions=sum(len(picture.questions) for picture in training_pictures),
            held_out=len(pictures) - len(training_pictures),
            held_out_questions=len(cases),
            labelled=sum(len(picture.questions) for picture in pictures if picture.held_out and picture.labelled),
            unread=self._unread_pictures,
            steps=trainer.course.steps,
            minutes=round((self._asked_s + trainer.course.spent_s) / 60, 2),
        )
