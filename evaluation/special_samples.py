"""Camouflage, voids, pans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from arr_coc.errors import OptionError
from training.clips.cast import (
    MARGIN_PX,
    ClipOptions,
    Player,
    faint,
    meets,
    one,
    shape_player,
    text_player,
)
from training.clips.fonts import random_word
from training.clips.scenes import ClipPlan, Void, page
from training.clips.truth import Box, Clip, Kind, Sample
from training.questions.samples import ask

DISTRACTOR_PX = (64.0, 110.0)
"""Size of a distractor: two to three and a half tiles across."""

DISTRACTORS = 2
BRIGHT = ("red", "yellow", "orange", "blue", "white")
_TRIES = 200
_SEEDS = 2**62


def camouflage_sample(
    rng: np.random.Generator, size_px: tuple[int, int], options: ClipOptions
) -> tuple[ClipPlan, Sample]:
    """A faint word, and one or two large bright shapes; the word is asked for."""
    for _ in range(_TRIES):
        word = faint(rng, text_player(rng, random_word(rng, "test"), "white", "test", options))
        large = replace(options, sizes_px=DISTRACTOR_PX)
        bright = [
            shape_player(
                rng, one(rng, ("circle", "square", "star", "heart", "cross", "hexagon")), one(rng, BRIGHT), large
            )
            for _ in range(int(rng.integers(1, DISTRACTORS + 1)))
        ]
        cast = place_apart(rng, [word, *bright], size_px)
        plan = ClipPlan(size_px, (0.0,), tuple(cast), options, None, (0, 0), int(rng.integers(_SEEDS)))
        sample = ask(rng, plan.facts(), "word", "test") if cast else None
        if sample is not None:
            return plan, replace(sample, distractors=(tuple(player.box_px(0) for player in cast[1:]),))
    raise OptionError(f"no room for a word and its distractors in {size_px[0]}x{size_px[1]} pixels")


def void_sample(
    rng: np.random.Generator, size_px: tuple[int, int], kind: Kind, options: ClipOptions
) -> tuple[ClipPlan, Sample]:
    """A pattern, asked for its name or its colour.

    Args:
        rng: Source of the draws.
        size_px: (width, height).
        kind: "shape" for its name, "colour" for its colour.
        options: As of other clips.
    """
    plan = ClipPlan(size_px, (0.0,), (), options, Void.random(rng), (0, 0), int(rng.integers(_SEEDS)))
    sample = ask(rng, plan.facts(), kind, "test")
    assert sample is not None, "a pattern has a name and a colour"
    return plan, sample


def pan_samples(
    rng: np.random.Generator, size_px: tuple[int, int], frames: int, kind: Kind, options: ClipOptions, group: str
) -> Iterator[tuple[ClipPlan, Sample]]:
    """A pan over a page, one sample for every frame; the asked thing is in all of them, and the answer the same.

    Args:
        rng: Source of the draws.
        size_px: (width, height) of a frame.
        frames: Number of frames.
        kind: Kind of the question.
        options: Number and kinds of things on the page.
        group: Group of the samples.

    Raises:
        OptionError: No draw gave a question of that kind.
    """
    for _ in range(_TRIES):
        plan = page(rng, size_px, frames, options, "test")
        sample = ask(rng, plan.facts(), kind, "test")
        if sample is not None and all(sample.boxes):
            break
    else:
        raise OptionError(f"no pan of {frames} frames gave a question of the kind {kind!r} in {_TRIES} tries")
    for frame in range(frames):
        clip = Clip(sample.clip.frames[:1], (plan.times_s[frame],), (plan.things[frame],))
        yield plan, replace(sample, clip=clip, boxes=sample.boxes[frame : frame + 1], group=group)


def place_apart(rng: np.random.Generator, players: list[Player], size_px: tuple[int, int]) -> list[Player]:
    """The players at places apart from each other; none if there is no room for one."""
    boxes = np.empty((0, 4))
    cast: list[Player] = []
    for player in players:
        left, top, right, bottom = player.swept_px(1, MARGIN_PX)
        free = (size_px[0] - (right - left), size_px[1] - (bottom - top))
        for _ in range(_TRIES):
            candidate = player.placed(float(rng.uniform(0, free[0])) - left, float(rng.uniform(0, free[1])) - top)
            box: Box = candidate.swept_px(1, MARGIN_PX)
            if not meets(np.array(box), boxes):
                cast.append(candidate)
                boxes = np.vstack([boxes, box])
                break
        else:
            return []
    return cast
