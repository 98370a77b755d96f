"""Context of an asker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stream.scenes.drawing import SHAPE_NAMES
from training.clips.cast import COLOUR_NAMES, one
from training.clips.fonts import Split
from training.clips.scenes import PATTERNS
from training.clips.truth import Clip
from training.questions.stories import Names, Story


@dataclass(frozen=True)
class Asked:
    """A question, its answer, and the things that it is about."""

    question: str
    answer: str
    about: Sequence[Story] = ()
    facts: tuple[str, ...] = ()


@dataclass(frozen=True)
class AskContext:
    """Context of an asker: chance, a clip, the split whose words it may name, the stories of the clip's things."""

    rng: np.random.Generator
    clip: Clip
    split: Split
    stories: list[Story]

    @cached_property
    def names(self) -> Names:
        return Names(self.stories)

    @cached_property
    def steady(self) -> list[Story]:
        return [story for story in self.stories if story.steady]

    @cached_property
    def shuffled(self) -> list[Story]:
        """The steady things in random order."""
        return [self.steady[i] for i in self.rng.permutation(len(self.steady))]

    def word(self, wordings: Sequence[str], *parts: str) -> str:
        """One of the wordings, filled in."""
        return one(self.rng, wordings).format(*parts)

    def name(self, story: Story, colour: bool = True) -> str:
        """One of the names that fit this story alone, perhaps with its colour; "" if there is none."""
        names = self.names.of(story, colour)
        return one(self.rng, names) if names else ""

    def absent(self) -> str:
        """A name that fits nothing in the clip: of another shape, colour or word."""
        for _ in range(20):
            shape, colour = one(self.rng, SHAPE_NAMES), one(self.rng, COLOUR_NAMES)
            if self.stories and self.rng.random() < 0.6:
                story = one(self.rng, self.stories)
                shape = story.kind if self.rng.random() < 0.5 else shape
                colour = (story.colour or colour) if self.rng.random() < 0.5 else colour
            name = shape if self.rng.random() < 0.4 else f"{colour} {shape}"
            if "faint" not in name and shape not in PATTERNS and not self.names.fitting(name):
                return name
        return ""
