"""`ask`, and a sample of a wanted kind.

A thing is only ever called by a name that fits it alone, and asked about only what holds in every frame of the clip;
if a clip gives no such question, it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from arr_coc.errors import OptionError
from training.clips.cast import ClipOptions
from training.clips.fonts import Split
from training.clips.scenes import ClipPlan, random_plan
from training.clips.truth import KINDS, Box, Clip, Kind, Sample
from training.questions.asking import AskContext, Asked
from training.questions.kinds import (
    colour,
    count,
    describe,
    event,
    exists,
    movement,
    number,
    relation,
    shape,
    where,
    word,
)
from training.questions.stories import Story, stories


def ask(rng: np.random.Generator, clip: Clip, kind: Kind, split: Split) -> Sample | None:
    """Ask about a clip.

    Args:
        rng: Source of chance.
        clip: The clip, which need not be drawn.
        kind: Kind of the question.
        split: Split of the words.

    Returns:
        The sample; None if the clip gives no question of the kind whose answer is beyond doubt.
    """
    pair = _ASKERS[kind](AskContext(rng, clip, split, stories(clip)))
    if pair is None:
        return None
    question = pair.question
    if rng.random() < 0.1 and question == question.capitalize():
        question = question.lower().rstrip("?.")
    return Sample(clip, kind, question, pair.answer, _boxes(pair.about, len(clip.frames)), pair.facts)


def _boxes(about: Sequence[Story], frames: int) -> tuple[tuple[Box, ...], ...]:
    return tuple(tuple(box for story in about for box in story.boxes[frame]) for frame in range(frames))


_ASKERS: dict[Kind, Callable[[AskContext], Asked | None]] = {
    "colour": colour,
    "shape": shape,
    "where": where,
    "word": word,
    "number": number,
    "count": count,
    "movement": movement,
    "event": event,
    "exists": exists,
    "relation": relation,
    "describe": describe,
}


_TRIES = 200
_DEFAULTS = ClipOptions()


def random_sample(
    rng: np.random.Generator,
    size_px: tuple[int, int],
    frames: int,
    split: Split,
    kind: Kind,
    options: ClipOptions = _DEFAULTS,
) -> Sample:
    """Ask about a random clip.

    Args:
        rng: Source of chance.
        size_px: (width, height) of the frames.
        frames: Number of frames.
        split: Split of fonts and words.
        kind: Kind of the question.
        options: Shares of kinds, events and movement.

    Raises:
        OptionError: No clip of these options gives such a question: a movement in one frame, say.
    """
    plan, sample = plan_sample(rng, size_px, frames, split, kind, options)
    return replace(sample, clip=plan.draw())


def plan_sample(
    rng: np.random.Generator, size_px: tuple[int, int], frames: int, split: Split, kind: Kind, options: ClipOptions
) -> tuple[ClipPlan, Sample]:
    """Return a plan of a clip and a sample about it, whose frames are blank: `random_sample` without drawing.

    Args:
        rng: Source of chance.
        size_px: (width, height) of the frames.
        frames: Number of frames.
        split: Split of fonts and words.
        kind: Kind of the question.
        options: Shares of kinds, events and movement.

    Raises:
        OptionError: No clip of these options gives such a question.
    """
    clip_options = _fitting(kind, options)
    for _ in range(_TRIES):
        plan = random_plan(rng, size_px, frames, split, clip_options)
        sample = ask(rng, plan.facts(), kind, split)
        if sample is not None:
            return plan, sample
    raise OptionError(f"no clip of {frames} frames gave a question of the kind {kind!r} in {_TRIES} tries")


def _fitting(kind: Kind, options: ClipOptions) -> ClipOptions:
    """The options with more of what the kind asks about."""
    low, high = options.things
    if kind in ("word", "number"):
        words_share = 0.75 if kind == "word" else 0.25
        return replace(options, text_share=max(options.text_share, 0.6), words_share=words_share)
    if kind == "count":
        things = (max(low, min(4, high)), high)
        return replace(options, crowd_share=max(options.crowd_share, 0.8), event_share=0.0, things=things)
    if kind == "event":
        return replace(options, event_share=max(options.event_share, 0.85))
    if kind == "relation":
        return replace(options, things=(max(low, min(2, high)), high))
    return options


def ask_different(rng: np.random.Generator, clip: Clip, split: Split, most: int) -> list[Sample]:
    """Ask questions of different kinds about a clip, in a random order, each about something in it; at most `most`."""
    candidates = (ask(rng, clip, KINDS[index], split) for index in rng.permutation(len(KINDS)))
    return [sample for sample in candidates if sample is not None and any(sample.boxes)][:most]
