"""Ground truth of a clip; tile coverage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels."""

Kind = Literal[
    "colour", "shape", "where", "word", "number", "count", "movement", "event", "exists", "relation", "describe"
]
KINDS: tuple[Kind, ...] = (
    *("colour", "shape", "where", "word", "number", "count"),
    *("movement", "event", "exists", "relation", "describe"),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One thing as it stands in one frame: a shape, a number or a word; the last two have `text`.

    `movement` is which way it goes over the clip. `letters` are the boxes of the characters of `text`, in order.
    """

    kind: str
    colour: str
    box_px: Box
    movement: str = "still"
    text: str = ""
    letters: tuple[Box, ...] = ()


@dataclass(frozen=True, slots=True)
class Clip:
    """One to four frames, uint8 RGB [H, W, 3] of one size, at `times_s`; and the things in each of them."""

    frames: tuple[Image, ...]
    times_s: tuple[float, ...]
    things: tuple[tuple[Seen, ...], ...]

    @property
    def size_px(self) -> tuple[int, int]:
        """(width, height)."""
        return self.frames[0].shape[1], self.frames[0].shape[0]


@dataclass(frozen=True, slots=True)
class Sample:
    """One question about a clip. `boxes` holds those of the things that it asks about, for each frame.

    `facts` are the phrases that a description must hold; `distractors` what must not draw the tokens, frame by frame.
    `group` names samples that ask about successive frames of one clip. `part`: what the clip tests, in figures in place
    of the kind; `stale`: answers to this question that were right earlier in the clip.
    """

    clip: Clip
    kind: Kind
    question: str
    answer: str
    boxes: tuple[tuple[Box, ...], ...] = ()
    facts: tuple[str, ...] = ()
    distractors: tuple[tuple[Box, ...], ...] = field(default=())
    group: str = ""
    part: str = ""
    stale: tuple[str, ...] = ()
