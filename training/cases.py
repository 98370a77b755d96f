"""Cases from drawn clips, whose boxes are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch

from arr_coc.adaptation.cases import AllocatorCase, texture_of, tile_shares
from arr_coc.relevance.channels import TextureArray
from arr_coc.relevance.history import with_history
from arr_coc.types import TILE_PX, TileGrid
from training.clips.fonts import Split
from training.clips.scenes import SIZES_PX, clip_rng, random_plan
from training.clips.truth import Sample
from training.past import GlancedPast
from training.questions.samples import ask_different

FIRST_TRAINED = 4_000_000
"""Clips from this number on are the allocator's own; the model's trainer stays far below."""

FIRST_CHOSEN_BY = 5_000_000
"""Clips from this number on, of the training split, decide which way of training is shipped."""

_SINGLE_SHARE = 0.6
_MOST_FRAMES = 4
MOST_SHARE = 0.5
"""A question about things on more of a frame than this teaches nothing about where to look."""


def random_samples(split: Split, first: int, clips: int, questions: int = 4) -> Iterator[Sample]:
    """Yield samples of different kinds. Clips have one to four frames; one that gives no question is not drawn.

    Args:
        split: Split of the clips.
        first: Number of the first clip.
        clips: Number of clips.
        questions: Most samples of one clip.
    """
    for number in range(first, first + clips):
        rng = clip_rng(split, number)
        frames = 1 if rng.random() < _SINGLE_SHARE else int(rng.integers(2, _MOST_FRAMES + 1))
        plan = random_plan(rng, SIZES_PX[int(rng.integers(len(SIZES_PX)))], frames, split)
        samples = ask_different(rng, plan.facts(), split, questions)
        if samples:
            clip = plan.draw()
            yield from (replace(sample, clip=clip) for sample in samples)


def cases_of(
    samples: Iterable[Sample], with_images: bool = False, channels: str = "core13", past: GlancedPast | None = None
) -> Iterator[AllocatorCase]:
    """Yield cases of all frames of every sample that show something asked about, but not nearly everywhere.

    Args:
        samples: Samples; those of one clip follow each other.
        with_images: The cases hold the frames' images.
        channels: Profile of the texture's channels.
        past: Gives the past of a frame: each case comes twice, without it and after a glance at the frame.
    """
    clip = None
    textures: dict[int, TextureArray] = {}
    for sample in samples:
        if sample.clip is not clip:
            clip, textures = sample.clip, {}
        for frame, image in enumerate(sample.clip.frames):
            shape = TileGrid.of(*image.shape[:2]).shape
            target = tile_shares(sample.boxes[frame], shape, (TILE_PX, TILE_PX)).astype(np.float32)
            if not target.any() or (target > 0).mean() > MOST_SHARE:
                continue
            if frame not in textures:
                textures[frame] = texture_of(image, channels)
            case = AllocatorCase(
                textures[frame],
                torch.from_numpy(target),
                sample.question,
                sample.kind,
                sample.answer,
                image if with_images else None,
            )
            yield case
            if past is not None:
                history, prior = past.look(image, sample.question)
                texture = with_history(textures[frame], history)
                yield replace(case, texture=texture, prior=torch.from_numpy(prior))
