"""Frozen suites, by name.

Sizes of things, clutter and counts were fixed before any way to choose tokens was compared, and are not changed to
favour one. `frozen_suites.json` holds the hashes; a test compares them with what the code gives.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Literal

import numpy as np

from arr_coc.errors import OptionError
from evaluation.errors import SuiteError
from evaluation.questions import EvalQuestion
from evaluation.runner import Suite
from evaluation.special_samples import camouflage_sample, pan_samples, void_sample
from evaluation.stream_samples import ASKED, clip_samples
from training.clips.cast import ClipOptions, one
from training.clips.scenes import ClipPlan, clip_rng
from training.clips.truth import KINDS, Box, Clip, Kind, Sample
from training.questions.samples import plan_sample

COUNT = 300
SEEDS_OF_A_SUITE = 100_000
"""Test seeds set aside for each suite, in the order of `SUITES`."""

SetName = Literal["choose", "report"]

FIRST_NUMBERS: dict[SetName, int] = {"choose": 0, "report": 50_000}
"""Number of a suite's first clip in each set. Ways to choose tokens are compared on one, and reported on the other."""

SMALL_PX, LARGE_PX = ((256, 256),) * 4, ((512, 512),) * 4
STILL_SIZES_PX = (*SMALL_PX, *LARGE_PX, (512, 256), (640, 384), (768, 512), (1024, 1024))
LARGER_PX = ((1024, 768), (768, 1024), (1024, 1024))
VIDEO_SIZES_PX = (*SMALL_PX, *LARGE_PX, (512, 256), (640, 384))

PLAIN = ClipOptions(
    things=(1, 6),
    sizes_px=(30.0, 62.0),
    capitals_px=(15, 32),
    text_share=0.4,
    words_share=0.55,
    crowd_share=0.25,
    moving_share=0.45,
    event_share=0.6,
    drift_share=0.3,
    faint_share=0.0,
    clutter=1.0,
    worn=True,
    void_share=0.0,
)
"""Contents of the scenes of every suite, unless it has other ones; written out, so that they do not change."""

Planned = tuple[ClipPlan, Sample]
"""Plan to draw, and the question about it with blank frames."""

SampleGenerator = Callable[["SuiteSpec", int, np.random.Generator], Iterator[Planned]]
"""(suite, number, generator) → the samples of that number: one, or one for every frame of a pan or a stream."""


@dataclass(frozen=True, slots=True)
class SuiteSpec:
    """The parameters of a suite. Its samples take the kinds in turn, and sizes and numbers of frames at random."""

    name: str
    about: str
    generate: SampleGenerator
    kinds: tuple[Kind, ...]
    sizes_px: tuple[tuple[int, int], ...] = STILL_SIZES_PX
    frames: tuple[int, ...] = (1,)
    options: ClipOptions = PLAIN
    count: int = COUNT

    @property
    def parameters(self) -> dict[str, object]:
        """All of it for the set `choose`, fit for JSON."""
        sizes = [list(size) for size in self.sizes_px]
        fields = {"kinds": list(self.kinds), "sizes_px": sizes, "frames": list(self.frames), "count": self.count}
        return {**fields, "options": asdict(self.options), "first_seed": first_seed(self.name)}


def _random(suite: SuiteSpec, number: int, rng: np.random.Generator) -> Iterator[Planned]:
    kind = suite.kinds[number % len(suite.kinds)]
    yield plan_sample(rng, one(rng, suite.sizes_px), one(rng, suite.frames), "test", kind, suite.options)


def _present(suite: SuiteSpec, number: int, rng: np.random.Generator) -> Iterator[Planned]:
    """As `_random`, but never about an absent thing."""
    while True:
        ((plan, sample),) = _random(suite, number, rng)
        if any(sample.boxes):
            yield plan, sample
            return


def _camouflage(suite: SuiteSpec, number: int, rng: np.random.Generator) -> Iterator[Planned]:
    yield camouflage_sample(rng, one(rng, suite.sizes_px), suite.options)


def _void(suite: SuiteSpec, number: int, rng: np.random.Generator) -> Iterator[Planned]:
    yield void_sample(rng, one(rng, suite.sizes_px), suite.kinds[number % len(suite.kinds)], suite.options)


def _pan(suite: SuiteSpec, number: int, rng: np.random.Generator) -> Iterator[Planned]:
    kind = suite.kinds[number % len(suite.kinds)]
    yield from pan_samples(rng, one(rng, suite.sizes_px), suite.frames[0], kind, suite.options, f"pan-{number:02d}")


def _stream(suite: SuiteSpec, number: int, rng: np.random.Generator) -> Iterator[Planned]:
    yield from clip_samples(rng, one(rng, suite.sizes_px), number, suite.options)


_MOVING: tuple[Kind, ...] = ("movement", "event")
_STILL: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in _MOVING)

SUITES: dict[str, SuiteSpec] = {
    suite.name: suite
    for suite in (
        SuiteSpec("still", "every kind of question about one picture", _random, _STILL),
        SuiteSpec(
            "video",
            "two to four frames; half of the questions are about movement and events",
            _random,
            tuple(kind for still_kind in _STILL for kind in (still_kind, _MOVING[_STILL.index(still_kind) % 2])),
            VIDEO_SIZES_PX,
            (2, 3, 4),
        ),
        SuiteSpec(
            "text",
            "words of one to four tiles",
            _present,
            ("word",),
            options=replace(PLAIN, things=(1, 5), words_share=1.0, crowd_share=0.0),
        ),
        SuiteSpec(
            "camouflage",
            "a word hardly lighter or darker than its ground, and bright things that are not asked about",
            _camouflage,
            ("word",),
        ),
        SuiteSpec("void", "nothing but a pattern", _void, ("colour", "shape")),
        SuiteSpec(
            "pan",
            "the camera moves over a page of words and things; the same question at every frame",
            _pan,
            ("word", "number", "colour", "shape", "exists"),
            ((512, 512), (640, 384)),
            (15,),
            replace(PLAIN, things=(14, 22), moving_share=0.0, event_share=0.0, crowd_share=0.0),
        ),
        SuiteSpec(
            "stream",
            "8 to 16 answers, 35 to 120 seconds: small details, what moves, changes or left, signs, slow pans, cuts",
            _stream,
            (*ASKED, "event"),
            (*SMALL_PX[:2], (384, 256), (512, 512)),
            options=replace(PLAIN, moving_share=0.0, event_share=0.0, crowd_share=0.0),
            count=1050,
        ),
        SuiteSpec("large", "every kind of question about one picture of 768 or 1024 tiles", _random, _STILL, LARGER_PX),
    )
}


def first_seed(name: str) -> int:
    """The number of the suite's first test clip."""
    return SEEDS_OF_A_SUITE * (1 + list(SUITES).index(name))


def suite_samples(name: str, count: int | None = None, of: SetName = "choose") -> Iterator[Sample]:
    """The first `count` samples of a suite's set, drawn; all if that is None. The same on every call.

    Raises OptionError for an unknown suite, and for a count below 1.
    """
    return _draw(_plan(name, count, of))


def suite_hash(name: str, of: SetName = "choose") -> str:
    """SHA-256 over a suite's parameters, and over question, answer and places (whole pixels) of all samples of a set.

    Pixels are not in it: libraries round them differently from machine to machine. Raises OptionError for an unknown
    suite.
    """
    parameters = _suite(name).parameters
    parameters["first_seed"] = first_seed(name) + FIRST_NUMBERS[of]
    digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
    for _, sample in _plan(name, None, of):
        boxes = [_round_boxes(frame) for frame in (*sample.boxes, *sample.distractors)]
        of_stream = [sample.part, sample.group, sample.clip.times_s, sample.stale] if sample.part else []
        digest.update(json.dumps([sample.kind, sample.question, sample.answer, boxes, *of_stream]).encode())
    return digest.hexdigest()


def _round_boxes(boxes: Iterable[Box]) -> list[list[int]]:
    return [[round(edge) for edge in box] for box in boxes]


def _suite(name: str) -> SuiteSpec:
    if name not in SUITES:
        raise OptionError(f"no suite is called {name!r}; there are {', '.join(SUITES)}")
    return SUITES[name]


def _plan(name: str, count: int | None, of: SetName) -> Iterator[Planned]:
    suite = _suite(name)
    if count is not None and count < 1:
        raise OptionError(f"a suite is asked for 1 sample or more, got {count}")
    return islice(_plan_all(suite, FIRST_NUMBERS[of]), suite.count if count is None else count)


def _plan_all(suite: SuiteSpec, first: int) -> Iterator[Planned]:
    for number in range(first, first + suite.count):
        yield from suite.generate(suite, number, clip_rng("test", first_seed(suite.name) + number))


def _draw(pairs: Iterator[Planned]) -> Iterator[Sample]:
    """The samples with their pictures. A clip is drawn once, and each of its samples gets the picture of its time."""
    last: ClipPlan | None = None
    for plan, sample in pairs:
        if plan is not last:
            last, clip = plan, plan.draw()
        if len(clip.frames) == len(sample.clip.frames):
            yield replace(sample, clip=clip)
        else:
            frame = clip.frames[clip.times_s.index(sample.clip.times_s[0])]
            yield replace(sample, clip=Clip((frame,), sample.clip.times_s, sample.clip.things))


def named_suite(name: str, count: int | None = None, of: SetName = "report") -> Suite:
    """The first `count` questions of a suite's set, all if that is None.

    Raises SuiteError, naming the suites that there are.
    """
    if name not in SUITES:
        raise SuiteError(f"unknown suite {name!r}; there are {', '.join(SUITES)}")

    def questions() -> Iterator[EvalQuestion]:
        last: EvalQuestion | None = None
        for index, sample in enumerate(suite_samples(name, count, of)):
            question = EvalQuestion.of(index, sample)
            if last is not None and last.group and last.group == question.group:
                before, before_s = (*last.before, *last.frames), (*last.before_s, *last.times_s)
                question = replace(question, before=before, before_s=before_s)
            last = question
            yield question

    return Suite(name, suite_hash(name, of), questions)
