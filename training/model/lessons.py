"""Lessons of the model, and when each is taught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from arr_coc.texture.regions import overview_regions
from arr_coc.types import TileGrid
from stream.scenes.drawing import GroundTruth
from training.clips import demo_worlds
from training.clips.cast import ClipOptions, one
from training.clips.scenes import random_crowd
from training.clips.truth import KINDS, Box, Clip, Kind, Sample, Seen
from training.model.views import STRATEGIES, Showing, ShowingStrategy
from training.questions.samples import ask, plan_sample

_AGAIN = 0.2
"""Probability that a question is put to a clip twice: few have eight different ones in them."""

QUESTIONS, FEW_QUESTIONS = 8, 4
"""Questions about each clip that is asked about: as many as its tokens can show the things of."""

SIZES_PX = (*((256, 256),) * 8, *((512, 512),) * 3, (512, 256), (512, 256), (384, 256), (640, 384))
LARGE_SIZES_PX = ((768, 512), (1024, 1024))
READ_SHARE = 0.3
"""Of the batches that ask: those for the text in a small picture. Reading is what takes longest to learn."""

READ_CHARACTERS = (1, 2, 3, 4, 5, 5, 5)
"""Longest text: one character is learned first."""

READ_SIZES_PX = ((160, 96), (192, 96), (160, 160), (256, 128))
_READING = ClipOptions(things=(1, 2), text_share=1.0, void_share=0.0)

COMPARE_SHARE = 0.4
"""Of the other batches that ask: those in which places are compared, or things counted, in small pictures."""

COMPARE_SIZES_PX = ((160, 160), (192, 192), (256, 128), (256, 256))
COMPARE_FRAMES = (1, 1, 1, 2, 2, 2, 3, 4)
COMPARE_KINDS: tuple[Kind, ...] = ("relation", "count")
COMPARE_MOVING_KINDS: tuple[Kind, ...] = ("movement", "movement", "event", "event", "event", "relation")
_COMPARING = ClipOptions(
    things=(1, 6), sizes_px=(26.0, 48.0), text_share=0.1, moving_share=0.6, drift_share=0.2, void_share=0.0
)

_PLAIN = ClipOptions()

DESCRIBE_SHARE = 0.25
"""Of the batches that ask: those in which every clip is described."""

FRAMES = (1, 1, 1, 1, 2, 3, 4)
_OFTEN: dict[Kind, int] = {"word": 3, "count": 3, "event": 3, "movement": 2, "number": 2, "exists": 2}
ANSWERED_SHORTLY: tuple[Kind, ...] = tuple(
    kind for kind in KINDS if kind != "describe" for _ in range(_OFTEN.get(kind, 1))
)
"""Kinds that take longest to learn are asked more often."""

STILL_KINDS: tuple[Kind, ...] = tuple(kind for kind in ANSWERED_SHORTLY if kind not in ("movement", "event"))

_SHARES = ((0.3, 0.6, 0.25), (0.85, 0.25, 0.25), (1.0, 0.15, 0.75))
"""Until which share of training how large a share of the batches only sees, and how large a share of those that ask
shows the demo's plain worlds, whose captions say how things move: these are soon forgotten."""

_STRATEGY_SHARES = (0.1, 0.3, 0.35, 0.1, 0.075, 0.075)
_KEPT_SHARES = (0.1, 0.2, 0.27, 0.27, 0.4, 0.6, 1.0)
_LARGE_SHARE = 0.1
_LEAST_TOKENS = 6
_FEW_TOKENS = 24

OVERVIEW_SHARE = 0.45
"""Of the batches that ask: those in which an overview of each frame comes first."""

GLANCE_SHARE = 0.1
"""Of these: share that shows nothing else, as a glance does."""

MOST_OVERVIEW = 64
"""Tokens of an overview."""

WIDE_SHARE = 0.25
"""Of the batches that ask: those with wide and tall regions along lines of text. So have half of those that look at a
cover."""

DEMO_FRAMES = (1, 1, 1, 1, 1, 2, 2, 3)
STREAKS_SHARE = 0.4
"""Of the demo's worlds of several frames: those in which streaks show the movement, too."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Settings that all clips of one batch share.

    `asks`: questions are put, not only tokens looked at; `reads`: one for a word or a number of at most this many
    characters, in a small picture, else 0; `describes`: among them one for a description, which is long.
    `budget`, `strategy`, `overview`, `wide`: as in `Showing`.
    """

    asks: bool
    reads: int
    describes: bool
    demo: bool
    frames: int
    size_px: tuple[int, int]
    budget: int
    strategy: ShowingStrategy
    compares: bool = False
    overview: int = 0
    wide: bool = False

    @property
    def showing(self) -> Showing:
        return Showing(self.budget, self.strategy, self.overview, self.wide)

    @property
    def questions(self) -> int:
        if self.reads:
            return 1
        return FEW_QUESTIONS if self.budget < _FEW_TOKENS else QUESTIONS

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of questions that may be asked."""
        if self.compares:
            return COMPARE_MOVING_KINDS if self.frames > 1 else COMPARE_KINDS
        return ANSWERED_SHORTLY if self.frames > 1 else STILL_KINDS

    @property
    def options(self) -> ClipOptions:
        """Contents of the clips."""
        if self.reads:
            return _READING
        return _COMPARING if self.compares else _PLAIN


@dataclass(frozen=True, slots=True)
class Lesson:
    """A clip and (question, answer) pairs about it.

    `about`: for every question, as in `Sample`, the boxes of what it asks about in each frame; empty if unknown.
    `timed`: several frames are introduced by their times; if not, they are pictures, which may have several sizes.
    """

    clip: Clip
    questions: tuple[tuple[str, str], ...] = ()
    about: tuple[tuple[tuple[Box, ...], ...], ...] = ()
    timed: bool = True

    @classmethod
    def of(cls, clip: Clip, samples: Sequence[Sample]) -> Lesson:
        """The samples' questions, with another clip in place of theirs."""
        pairs = tuple((sample.question, sample.answer) for sample in samples)
        return cls(clip, pairs, tuple(sample.boxes for sample in samples))

    def asked_in(self, frame: int) -> tuple[Box, ...]:
        """Boxes in a frame of everything that the questions are about."""
        return tuple(box for boxes in self.about if boxes for box in boxes[frame])


class Teacher:
    """Generator of lessons from one random generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def plan(self, progress: float) -> BatchPlan:
        """Settings of the next batch, when `progress` in [0, 1] of training is done."""
        rng = self._rng
        seeing, demo_share = next(shares for until, *shares in _SHARES if progress <= until)
        if rng.random() < seeing:
            return self._looking()
        plan = self._asking(demo_share)
        plan = replace(plan, wide=bool(rng.random() < WIDE_SHARE))
        return self._with_overview(plan) if rng.random() < OVERVIEW_SHARE else plan

    def _looking(self) -> BatchPlan:
        rng = self._rng
        size_px = one(rng, SIZES_PX)
        tiles = _tiles(size_px)
        if rng.random() < 0.6:
            return BatchPlan(False, 0, False, False, 1, size_px, tiles, "grid")
        budget = max(self._shown(size_px)[0], tiles // 2)
        return BatchPlan(False, 0, False, False, 1, size_px, budget, "foveated", wide=bool(rng.random() < 0.5))

    def _asking(self, demo_share: float) -> BatchPlan:
        rng = self._rng
        if rng.random() < READ_SHARE:
            size_px = one(rng, READ_SIZES_PX)
            reads = one(rng, READ_CHARACTERS)
            budget, strategy = self._shown(size_px) if rng.random() < 0.5 else (_tiles(size_px), "grid")
            return BatchPlan(True, reads, False, False, 1, size_px, budget, strategy)
        if rng.random() < COMPARE_SHARE:
            size_px, frames = one(rng, COMPARE_SIZES_PX), one(rng, COMPARE_FRAMES)
            return BatchPlan(True, 0, False, False, frames, size_px, *self._shown(size_px), compares=True)
        describes = bool(rng.random() < DESCRIBE_SHARE)
        demo = bool(rng.random() < demo_share)
        frames = one(rng, DEMO_FRAMES if demo else FRAMES)
        size_px = one(rng, demo_worlds.SIZES_PX if demo else SIZES_PX)
        if frames == 1 and rng.random() < _LARGE_SHARE:
            size_px = one(rng, demo_worlds.LARGE_SIZES_PX if demo else LARGE_SIZES_PX)
        return BatchPlan(True, 0, describes, demo, frames, size_px, *self._shown(size_px))

    def _with_overview(self, plan: BatchPlan) -> BatchPlan:
        """The plan, with an overview of any size up to half of its tokens; or with an overview alone."""
        rng = self._rng
        if not plan.reads and rng.random() < GLANCE_SHARE:
            tokens = min(MOST_OVERVIEW, max(_LEAST_TOKENS, _tiles(plan.size_px) // 4))
            return replace(plan, budget=len(overview_regions(_shape(plan.size_px), tokens)), overview=tokens)
        most = min(MOST_OVERVIEW, plan.budget // 2)
        return replace(plan, overview=most if rng.random() < 0.7 else max(1, most // 4))

    def _shown(self, size_px: tuple[int, int]) -> tuple[int, ShowingStrategy]:
        """Number of tokens shown of each frame, and the way of choosing them."""
        rng = self._rng
        budget = max(_LEAST_TOKENS, round(_tiles(size_px) * one(rng, _KEPT_SHARES)))
        return budget, STRATEGIES[int(rng.choice(len(STRATEGIES), p=_STRATEGY_SHARES))]

    def lesson(self, plan: BatchPlan) -> Lesson:
        """One clip, with its questions."""
        rng = self._rng
        if plan.demo:
            return _demo_lesson(rng, plan)
        if not plan.asks:
            return Lesson(random_crowd(rng, plan.size_px).draw())
        if plan.reads:
            return _reading_lesson(rng, plan)
        first = "describe" if plan.describes else one(rng, plan.kinds)
        clip_plan, sample = plan_sample(rng, plan.size_px, plan.frames, "train", first, plan.options)
        samples, questions = [sample], {sample.question}
        blank = clip_plan.facts()
        while len(samples) < plan.questions:
            another = ask(rng, blank, one(rng, plan.kinds), "train")
            if another is not None and (another.question not in questions or rng.random() < _AGAIN):
                samples.append(another)
                questions.add(another.question)
        return Lesson.of(clip_plan.draw(), samples)


def _tiles(size_px: tuple[int, int]) -> int:
    """Of a picture of (width, height) pixels."""
    rows, cols = _shape(size_px)
    return rows * cols


def _shape(size_px: tuple[int, int]) -> tuple[int, int]:
    return TileGrid.of(size_px[1], size_px[0]).shape


def _reading_lesson(rng: np.random.Generator, plan: BatchPlan) -> Lesson:
    while True:
        kind: Kind = "number" if plan.reads == 1 or rng.random() < 0.4 else "word"
        clip_plan, sample = plan_sample(rng, plan.size_px, 1, "train", kind, plan.options)
        if len(sample.answer.rstrip(".")) <= plan.reads:
            return Lesson.of(clip_plan.draw(), [sample])


def _demo_lesson(rng: np.random.Generator, plan: BatchPlan) -> Lesson:
    streaks = plan.frames == 1 or bool(rng.random() < STREAKS_SHARE)
    world = demo_worlds.random_world(rng, plan.size_px, frames=plan.frames, streaks=streaks)
    others: Sequence[demo_worlds.Kind] = demo_worlds.KINDS[1:]
    kinds = ("caption", *(others[int(k)] for k in rng.permutation(len(others))[: plan.questions - 1]))
    questions = [demo_worlds.ask(rng, world.facts, kind) for kind in kinds]
    times_s = tuple(round(float(at_s), 1) for at_s in np.cumsum(rng.uniform(0.3, 2.0, plan.frames)))
    clip = Clip(world.images, times_s, tuple(seen_in(facts, streaks) for facts in world.frames))
    return Lesson(clip, tuple((question.text, question.answer) for question in questions))


def seen_in(facts: GroundTruth, streaks: bool = True) -> tuple[Seen, ...]:
    """The things of a demo world, with their streaks if these are drawn."""
    things = []
    for thing in facts.things:
        appearance = Seen(thing.shape, thing.colour, thing.box_px(streak=streaks), thing.movement)
        if thing.number is not None:
            left, top, right, bottom = thing.box_px()
            halves = ((left, top, thing.x_px, bottom), (thing.x_px, top, right, bottom))
            appearance = replace(appearance, text=f"{thing.number:02d}", letters=halves)
        things.append(appearance)
    return tuple(things)
