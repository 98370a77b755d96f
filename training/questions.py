"""Questions about clips, in several wordings, and their answers.

A thing is only ever called by a name that fits it alone, and asked about only what holds in every frame of the clip;
where a clip gives no such question, there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from training.asking import Asked, Asking
from training.fonts import Split
from training.happenings import describe, event, movement
from training.sights import colour, count, exists, number, relation, shape, where, word
from training.stories import Story, stories
from training.truth import Box, Clip, Kind, Sample


def ask(rng: np.random.Generator, clip: Clip, kind: Kind, split: Split) -> Sample | None:
    """A question of a kind about a clip; None if the clip gives none whose answer is beyond doubt."""
    asked = _ASKERS[kind](Asking(rng, clip, split, stories(clip)))
    if asked is None:
        return None
    question = asked.question
    if rng.random() < 0.1 and question == question.capitalize():
        question = question.lower().rstrip("?.")
    return Sample(clip, kind, question, asked.answer, _boxes(asked.about, len(clip.frames)), asked.facts)


def _boxes(about: Sequence[Story], frames: int) -> tuple[tuple[Box, ...], ...]:
    return tuple(tuple(box for story in about for box in story.boxes[frame]) for frame in range(frames))


_ASKERS: dict[Kind, Callable[[Asking], Asked | None]] = {
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
