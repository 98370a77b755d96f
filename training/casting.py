"""Casting: which things a random clip shows, where they stand, and what they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from stream.scenes.drawing import COLOURS, RGB, SHAPE_NAMES, placed
from stream.scenes.textures import set_text
from training.cast import PLATE_PX, Backing, Player, opposite
from training.fonts import Split, random_face
from training.words import random_number, random_word

T = TypeVar("T")
Boxes = npt.NDArray[np.float64]
COLOUR_NAMES = tuple(COLOURS)
MARGIN_PX = PLATE_PX + 4
"""Kept free around every thing: a plate and a shadow have room in it."""

_TRIES = 40
_WIDEST_TEXT_PX = 112
_TURNABLE = 12.0


@dataclass(frozen=True, slots=True)
class ClipOptions:
    """What random clips are made of. Shares are chances in [0, 1], sizes are pixels of the picture.

    Things are `sizes_px` across, text has capitals `capitals_px` high; together with a width of at most 112 pixels each
    thing takes one to four tiles' area.
    """

    things: tuple[int, int] = (1, 6)
    sizes_px: tuple[float, float] = (30.0, 62.0)
    capitals_px: tuple[int, int] = (15, 32)
    text_share: float = 0.4
    words_share: float = 0.55
    """Of the texts; the others are numbers."""
    crowd_share: float = 0.25
    """Of the clips: things that share their shape or their colour."""
    moving_share: float = 0.45
    event_share: float = 0.6
    drift_share: float = 0.3
    faint_share: float = 0.04
    """Of the texts: those that differ little from their ground."""
    clutter: float = 1.0
    """Bits of clutter for every 64x64 pixels, at most."""
    worn: bool = True
    """Whether there are uneven light, blur, grain and compression."""
    void_share: float = 0.03
    """Of the clips: nothing but a pattern."""


def one(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def random_cast(
    rng: np.random.Generator, size_px: tuple[int, int], frames: int, split: Split, options: ClipOptions
) -> list[Player]:
    """Players whose ways keep apart from each other and inside a picture of (width, height) pixels from (0, 0)."""
    wanted = int(rng.integers(options.things[0], options.things[1] + 1))
    crowd = rng.random() < options.crowd_share and options.things[1] > 1
    wanted = max(wanted, 2) if crowd else wanted
    shape, colour = one(rng, SHAPE_NAMES), one(rng, COLOUR_NAMES)
    same_shape = crowd and rng.random() < 0.6
    same_colour = crowd and not same_shape
    cast: list[Player] = []
    boxes = np.empty((0, 4))
    eventful = frames > 1 and rng.random() < options.event_share
    for _ in range(_TRIES + wanted):
        if len(cast) == wanted:
            break
        alike = rng.random() < 0.7
        if same_shape and alike:
            player = shape_player(rng, shape, one(rng, COLOUR_NAMES), options)
        else:
            player = _random_player(rng, split, options, colour if same_colour and alike else one(rng, COLOUR_NAMES))
        if frames > 1:
            player = _directed(rng, player, frames, options, eventful and not cast)
        player = _somewhere(rng, player, size_px, frames)
        box = np.array(player.swept_px(frames, MARGIN_PX))
        if _inside(box, size_px) and not meets(box, boxes) and not (frames > 1 and _alike(player, cast)):
            cast.append(player)
            boxes = np.vstack([boxes, box])
    return cast


def shape_player(rng: np.random.Generator, shape: str, colour: str, options: ClipOptions) -> Player:
    """A shape of random size and turn; it stands at (0, 0)."""
    turn = float(rng.uniform(-_TURNABLE, _TURNABLE))
    if shape == "arrow":
        turn += 90.0 * int(rng.integers(4))
    elif shape == "crescent":
        turn += 180.0 * int(rng.integers(2))
    size_px = float(rng.uniform(*options.sizes_px))
    return Player(shape, colour, tinted(rng, colour), placed(shape, 0.0, 0.0, size_px, turn), 0.0, 0.0)


def text_player(rng: np.random.Generator, text: str, colour: str, split: Split, options: ClipOptions) -> Player:
    """A number or a word in one of the split's faces; it stands at (0, 0)."""
    low, high = options.capitals_px
    height_px = int(rng.integers(max(low, 20) if len(text) == 1 else low, high + 1))
    face, spacing = random_face(rng, split), float(rng.uniform(0.0, 0.12))
    lettering = set_text(face, text, height_px, spacing * height_px)
    while lettering.size_px[0] > _WIDEST_TEXT_PX and height_px > low:
        height_px = max(low, height_px * _WIDEST_TEXT_PX // (lettering.size_px[0] + 1))
        lettering = set_text(face, text, height_px, spacing * height_px)
    rgb = tinted(rng, colour)
    what = "number" if text[0].isdigit() else "word"
    plate = opposite(rgb)
    return Player(what, colour, rgb, lettering, 0.0, 0.0, text, _backing(rng), plate)


def tinted(rng: np.random.Generator, colour: str) -> RGB:
    """A named colour, a little off."""
    red, green, blue = (int(np.clip(level + rng.integers(-14, 15), 0, 255)) for level in COLOURS[colour])
    return red, green, blue


def meets(box: Boxes, boxes: Boxes) -> bool:
    """Whether a box [4] overlaps any of boxes [N, 4]."""
    apart = (boxes[:, 0] >= box[2]) | (boxes[:, 2] <= box[0]) | (boxes[:, 1] >= box[3]) | (boxes[:, 3] <= box[1])
    return not bool(apart.all())


def _random_player(rng: np.random.Generator, split: Split, options: ClipOptions, colour: str) -> Player:
    if rng.random() >= options.text_share:
        return shape_player(rng, one(rng, SHAPE_NAMES), colour, options)
    text = random_word(rng, split) if rng.random() < options.words_share else random_number(rng, split)
    player = text_player(rng, text, colour, split, options)
    if rng.random() < options.faint_share:
        return faint(rng, player)
    return player


def faint(rng: np.random.Generator, player: Player) -> Player:
    """The same text in a tone 28 to 48 levels lighter or darker than its ground."""
    contrast = int(rng.integers(28, 49)) * (1 if rng.random() < 0.5 else -1)
    return replace(player, colour="faint", backing="faint", contrast=contrast)


def _backing(rng: np.random.Generator) -> Backing:
    chance = rng.random()
    return "plate" if chance < 0.25 else "outline" if chance < 0.4 else "none"


def _directed(rng: np.random.Generator, player: Player, frames: int, options: ClipOptions, eventful: bool) -> Player:
    """The player with a way to go, and perhaps with an entry, an exit or a change of colour."""
    if rng.random() < options.moving_share:
        step = float(rng.uniform(18, 60) if frames > 2 else rng.uniform(26, 70)) * one(rng, (-1, 1))
        across = rng.random() < 0.5
        player = replace(player, step_px=(step, 0.0) if across else (0.0, step))
    if not eventful:
        return player
    frame = int(rng.integers(1, frames))
    event = rng.random()
    if event < 0.34:
        return _seen_to_move(replace(player, enters=frame), frames - frame)
    if event < 0.67 or player.backing == "faint":
        return _seen_to_move(replace(player, leaves=frame), frame)
    colour = one(rng, tuple(name for name in COLOUR_NAMES if name != player.colour))
    backing: Backing = "none" if player.backing == "plate" else player.backing
    return replace(player, turns_at=frame, second=(colour, tinted(rng, colour)), backing=backing)


def _seen_to_move(player: Player, frames: int) -> Player:
    """The player, standing still if it is only there for one frame."""
    return player if frames > 1 else replace(player, step_px=(0.0, 0.0))


def _somewhere(rng: np.random.Generator, player: Player, size_px: tuple[int, int], frames: int) -> Player:
    """The player at a random place from which its whole way lies inside the picture, if there is such a place."""
    swept = player.swept_px(frames, MARGIN_PX)
    free = [max(0.0, side - (swept[i + 2] - swept[i])) for i, side in enumerate(size_px)]
    return player.placed(
        float(rng.uniform(0, free[0])) - swept[0],
        float(rng.uniform(0, free[1])) - swept[1],
    )


def _inside(box: Boxes, size_px: tuple[int, int]) -> bool:
    return bool(box[0] >= -1 and box[1] >= -1 and box[2] <= size_px[0] + 1 and box[3] <= size_px[1] + 1)


def _alike(player: Player, cast: Sequence[Player]) -> bool:
    """Whether it could be taken for another one from one frame to the next: same kind, and either may change."""
    for other in cast:
        if (other.what, other.text) != (player.what, player.text):
            continue
        colours = {player.colour, player.second[0]} & {other.colour, other.second[0]} - {""}
        changing = any(p.step_px != (0.0, 0.0) or p.enters or p.leaves < 1000 for p in (player, other))
        if changing and colours:
            return True
        if player.turns_at < 1000 or other.turns_at < 1000:
            return True
    return False
