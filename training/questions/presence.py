"""Questions of presence in a drawn scene: of a present thing, of an absent one, and of one that no scene ever holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from stream.scenes.drawing import SHAPES
from training.clips import demo_worlds
from training.clips.cast import COLOUR_NAMES
from training.clips.fonts import Split
from training.clips.scenes import random_clip
from training.questions.asking import AskContext
from training.questions.kinds import exists
from training.questions.stories import stories

Kind = Literal["present", "absent", "colour", "shape", "absurd"]
KINDS: tuple[Kind, ...] = ("present", "absent", "colour", "shape", "absurd")
"""`absent`: a scene might hold it, and this one does not, though often something of its shape or colour. The others are
named with a word that the drawn world lacks: a `colour`, a `shape`, or something `absurd`."""

UNSEEN: dict[Split, dict[str, tuple[str, ...]]] = {
    "train": {
        "colour": ("pink", "brown", "turquoise", "golden", "beige", "crimson"),
        "shape": ("cylinder", "spiral", "octagon", "cube", "trapezoid"),
        "absurd": ("dog", "car", "person", "castle", "piano", "bicycle", "banana", "ghost", "telescope", "horse"),
    },
    "test": {
        "colour": ("magenta", "violet", "silver", "maroon", "indigo", "teal"),
        "shape": ("sphere", "pyramid", "oval", "pentagon", "rhombus"),
        "absurd": ("elephant", "cat", "house", "dragon", "guitar", "truck", "unicorn", "teapot", "zebra", "policeman"),
    },
}
"""Words of each split: what is calibrated on one is measured on the other."""

SIZES_PX = ((640, 384), (512, 320), (512, 512))
_WORDINGS = ("is there a {}?", "Is there a {}?", "Do you see a {}?")
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Presence:
    """A question about one picture, and whether it is to be answered with yes."""

    kind: Kind
    question: str

    @property
    def there(self) -> bool:
        return self.kind == "present"


@dataclass(frozen=True, slots=True)
class PresenceScene:
    """One picture, uint8 RGB [H, W, 3], and a question of each kind, as far as the picture gives one."""

    image: npt.NDArray[np.uint8]
    questions: tuple[Presence, ...]


def presence_scenes(scenes: int, split: Split, seed: int) -> Iterator[PresenceScene]:
    """So many pictures, alternately of the demo worlds and on grounds that look photographed. Fonts, words and unseen
    words are the split's; the same seed gives the same scenes."""
    for number in range(scenes):
        rng = np.random.default_rng([seed, split == "test", number])
        image, kind_questions = _world(rng) if number % 2 == 0 else _clip(rng, split)
        shape, colour = kind_questions["present"].split()[-1].rstrip("?"), str(rng.choice(COLOUR_NAMES))
        unseen_words = UNSEEN[split]
        names: dict[Kind, str] = {
            "colour": f"{rng.choice(unseen_words['colour'])} {shape if shape.isalpha() else 'circle'}",
            "shape": f"{colour} {rng.choice(unseen_words['shape'])}",
            "absurd": (f"{colour} " if rng.random() < 0.5 else "") + str(rng.choice(unseen_words["absurd"])),
        }
        questions = [Presence(kind, question) for kind, question in kind_questions.items()]
        questions += [Presence(kind, str(rng.choice(_WORDINGS)).format(name)) for kind, name in names.items()]
        yield PresenceScene(image, tuple(questions))


def _world(rng: np.random.Generator) -> tuple[npt.NDArray[np.uint8], dict[Kind, str]]:
    """A demo world, with a present and an absent thing."""
    size_px = SIZES_PX[int(rng.integers(2))]
    world = demo_worlds.random_world(rng, size_px)
    things = [thing for thing in world.facts.things if thing.number is None] or list(world.facts.things)
    thing = things[int(rng.integers(len(things)))]
    pairs = {(thing.colour, thing.shape) for thing in world.facts.things}
    while True:
        colour, shape = str(rng.choice(COLOUR_NAMES)), str(rng.choice(SHAPES))
        colour, shape = (thing.colour, shape) if rng.random() < 0.3 else (colour, shape)
        colour, shape = (colour, thing.shape) if rng.random() < 0.3 else (colour, shape)
        if (colour, shape) not in pairs:
            break
    wording = str(rng.choice(_WORDINGS))
    return world.image, {
        "present": wording.format(f"{thing.colour} {thing.shape}"),
        "absent": wording.format(f"{colour} {shape}"),
    }


def _clip(rng: np.random.Generator, split: Split) -> tuple[npt.NDArray[np.uint8], dict[Kind, str]]:
    """A picture as training draws them, with a question for either answer."""
    while True:
        clip = random_clip(rng, SIZES_PX[2], 1, split)
        asking, questions = AskContext(rng, clip, split, stories(clip)), {}
        for _ in range(_ATTEMPTS):
            pair = exists(asking)
            if pair is not None and not pair.question.startswith("Is the "):
                questions["present" if pair.answer == "yes." else "absent"] = pair.question
            if len(questions) == 2:
                return clip.frames[0], {"present": questions["present"], "absent": questions["absent"]}
