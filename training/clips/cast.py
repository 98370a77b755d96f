"""Players and casting them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from stream.scenes.drawing import COLOURS, RGB, SHAPE_NAMES, Contour, fill, place_shape
from stream.scenes.textures import TextMask, set_text, stamp
from training.clips.fonts import Split, random_face, random_number, random_word, redrawn
from training.clips.truth import Box, Image, Seen

Backing = Literal["none", "plate", "outline", "faint"]
"""Grounds of text: the bare ground, a plate, a thin outline; or it differs but little from the ground."""

FAINT = "faint"
"""The colour named for text hardly lighter or darker than its ground."""

PLATE_PX = 5
_LEAST_DISTANCE, _LEAST_BRIGHTNESS = 90, 28
"""Between ink and bare ground, as a distance in RGB and in brightness; text of less gets an outline."""

_LUMA = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True, slots=True)
class Player:
    """A thing with its part. Places are pixels of the scene, which equals the picture if the camera stands still.

    `body` is what is drawn, about (0, 0): contours, or lettering around it. It is present from frame `enters` until
    before frame `leaves`, moves `step_px` each frame, and from frame `turns_at` on has its second colour.
    """

    kind: str
    colour: str
    rgb: RGB
    body: tuple[Contour, ...] | TextMask
    x_px: float
    y_px: float
    text: str = ""
    backing: Backing = "none"
    plate: RGB = (128, 128, 128)
    contrast: int = 0
    step_px: tuple[float, float] = (0.0, 0.0)
    enters: int = 0
    leaves: int = 1000
    turns_at: int = 1000
    second: tuple[str, RGB] = ("", (0, 0, 0))

    @property
    def movement(self) -> str:
        """Direction of its movement."""
        dx, dy = self.step_px
        if not dx and not dy:
            return "still"
        if abs(dx) > abs(dy):
            return "right" if dx > 0 else "left"
        return "down" if dy > 0 else "up"

    def there(self, frame: int) -> bool:
        return self.enters <= frame < self.leaves

    def placed(self, x_px: float, y_px: float) -> Player:
        return replace(self, x_px=x_px, y_px=y_px)

    def box_px(self, frame: int, camera_px: tuple[float, float] = (0.0, 0.0)) -> Box:
        """Its box in a frame, seen by a camera that has moved by `camera_px`; what lies outside is not cut off."""
        x, y = self._middle(frame, camera_px)
        if isinstance(self.body, TextMask):
            low = _corner(self.body, x, y)
            width, height = self.body.size_px
            return float(low[0]), float(low[1]), float(low[0] + width), float(low[1] + height)
        low, high = self.body[0].min(axis=0), self.body[0].max(axis=0)
        return float(low[0]) + x, float(low[1]) + y, float(high[0]) + x, float(high[1]) + y

    def swept_px(self, frames: int, margin_px: float) -> Box:
        """The box around all places that it takes, with a margin."""
        boxes = [self.box_px(frame) for frame in (0, frames - 1)]
        left, top = (min(box[i] for box in boxes) - margin_px for i in (0, 1))
        right, bottom = (max(box[i] for box in boxes) + margin_px for i in (2, 3))
        return left, top, right, bottom

    def seen(self, frame: int, size_px: tuple[int, int], camera_px: tuple[float, float] = (0.0, 0.0)) -> Seen | None:
        """Its visible part in a frame; None if it is absent, or not wholly in the picture."""
        box = self.box_px(frame, camera_px)
        in_picture = box[0] >= 0 and box[1] >= 0 and box[2] <= size_px[0] and box[3] <= size_px[1]
        if not self.there(frame) or not in_picture:
            return None
        letters: tuple[Box, ...] = ()
        if isinstance(self.body, TextMask):
            left, top = box[:2]
            letters = tuple((left + b[0], top + b[1], left + b[2], top + b[3]) for b in self.body.boxes)
        colour = self.second[0] if frame >= self.turns_at else self.colour
        return Seen(self.kind, colour, box, self.movement, self.text, letters)

    def draw(self, image: Image, frame: int, camera_px: tuple[float, float] = (0.0, 0.0)) -> None:
        """Draw it as it stands in a frame, if it is present."""
        if not self.there(frame):
            return
        rgb = self.second[1] if frame >= self.turns_at else self.rgb
        x, y = self._middle(frame, camera_px)
        if isinstance(self.body, TextMask):
            self._write(image, self.body, _corner(self.body, x, y), rgb)
        else:
            fill(image, tuple(points + np.array([x, y]) for points in self.body), rgb)

    def _middle(self, frame: int, camera_px: tuple[float, float]) -> tuple[float, float]:
        return (
            self.x_px + self.step_px[0] * frame - camera_px[0],
            self.y_px + self.step_px[1] * frame - camera_px[1],
        )

    def _write(self, image: Image, lettering: TextMask, corner_px: tuple[int, int], rgb: RGB) -> None:
        left, top = corner_px
        width, height = lettering.size_px
        ground = _mean(image[max(0, top) : top + height, max(0, left) : left + width])
        if self.backing == "plate":
            low = (left - PLATE_PX, top - PLATE_PX)
            high = (left + width + PLATE_PX - 1, top + height + PLATE_PX - 1)
            cv2.rectangle(image, low, high, self.plate, cv2.FILLED)
        elif self.backing == "outline" or (self.backing == "none" and _close(ground, rgb)):
            padded = cv2.copyMakeBorder(lettering.mask, 2, 2, 2, 2, cv2.BORDER_CONSTANT)
            wide = np.asarray(cv2.dilate(padded, np.ones((3, 3), np.uint8)), np.uint8)
            stamp(image, wide, left - 2, top - 2, self.plate)
        elif self.backing == "faint":
            rgb = _offset(ground, self.contrast)
        stamp(image, lettering.mask, left, top, rgb)


def opposite(rgb: RGB) -> RGB:
    """A grey that contrasts with a colour, neither white nor black."""
    return (172, 170, 164) if _LUMA @ rgb < 128 else (66, 68, 72)


def _close(ground: npt.NDArray[np.float64], rgb: RGB) -> bool:
    """True if a colour is hard to distinguish from the ground."""
    difference = np.asarray(rgb) - ground
    return bool(np.linalg.norm(difference) < _LEAST_DISTANCE or abs(_LUMA @ difference) < _LEAST_BRIGHTNESS)


def _mean(ground: Image) -> npt.NDArray[np.float64]:
    """Its mean colour, float64 [3]; black if there is no ground."""
    return ground.reshape(-1, 3).mean(axis=0) if ground.size else np.zeros(3)


def _offset(ground: npt.NDArray[np.float64], contrast: int) -> RGB:
    """A colour `contrast` levels lighter or darker."""
    red, green, blue = (int(np.clip(level + contrast, 0, 255)) for level in ground)
    return red, green, blue


def _corner(lettering: TextMask, x_px: float, y_px: float) -> tuple[int, int]:
    width, height = lettering.size_px
    return round(x_px - width / 2), round(y_px - height / 2)


T = TypeVar("T")
Boxes = npt.NDArray[np.float64]
COLOUR_NAMES = tuple(COLOURS)
MARGIN_PX = PLATE_PX + 4
"""Kept free around every thing: a plate and a shadow have room in it."""

_TRIES = 40
_WIDEST_TEXT_PX = 112
_REDRAWN_SHARE = 0.6
"""Of the texts of training."""

_TURNABLE = 12.0


@dataclass(frozen=True, slots=True)
class ClipOptions:
    """Options of random clips. Shares are chances in [0, 1], sizes are pixels of the picture.

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
    """Of the texts: share that differs little from the ground."""
    clutter: float = 1.0
    """Bits of clutter for every 64x64 pixels, at most."""
    worn: bool = True
    """True if there are uneven light, blur, grain and compression."""
    void_share: float = 0.03
    """Of the clips: nothing but a pattern."""


def one(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def random_cast(
    rng: np.random.Generator, size_px: tuple[int, int], frames: int, split: Split, options: ClipOptions
) -> list[Player]:
    """Return players whose ways keep apart from each other and inside the picture.

    Args:
        rng: Source of chance.
        size_px: (width, height) of the picture, which begins at (0, 0).
        frames: Number of frames.
        split: Split of faces and words.
        options: Shares of kinds, events and movement.
    """
    count = int(rng.integers(options.things[0], options.things[1] + 1))
    crowd = rng.random() < options.crowd_share and options.things[1] > 1
    count = max(count, 2) if crowd else count
    shape, colour = one(rng, SHAPE_NAMES), one(rng, COLOUR_NAMES)
    same_shape = crowd and rng.random() < 0.6
    same_colour = crowd and not same_shape
    cast: list[Player] = []
    boxes = np.empty((0, 4))
    eventful = frames > 1 and rng.random() < options.event_share
    for _ in range(_TRIES + count):
        if len(cast) == count:
            break
        repeats = rng.random() < 0.7
        if same_shape and repeats:
            player = shape_player(rng, shape, one(rng, COLOUR_NAMES), options)
        else:
            player = _random_player(rng, split, options, colour if same_colour and repeats else one(rng, COLOUR_NAMES))
        if frames > 1:
            player = _directed(rng, player, frames, options, eventful and not cast)
        player = _somewhere(rng, player, size_px, frames)
        box = np.array(player.swept_px(frames, MARGIN_PX))
        if _inside(box, size_px) and not meets(box, boxes) and not (frames > 1 and _alike(player, cast)):
            cast.append(player)
            boxes = np.vstack([boxes, box])
    return cast


def shape_player(rng: np.random.Generator, shape: str, colour: str, options: ClipOptions) -> Player:
    """Return a shape of random size and turn, which stands at (0, 0).

    Args:
        rng: Source of chance.
        shape: Name of the shape.
        colour: Name of its colour.
        options: Range of sizes.
    """
    turn = float(rng.uniform(-_TURNABLE, _TURNABLE))
    if shape == "arrow":
        turn += 90.0 * int(rng.integers(4))
    elif shape == "crescent":
        turn += 180.0 * int(rng.integers(2))
    size_px = float(rng.uniform(*options.sizes_px))
    return Player(shape, colour, tinted(rng, colour), place_shape(shape, 0.0, 0.0, size_px, turn), 0.0, 0.0)


def text_player(rng: np.random.Generator, text: str, colour: str, split: Split, options: ClipOptions) -> Player:
    """Return a number or a word, which stands at (0, 0).

    Args:
        rng: Source of chance.
        text: Its characters, digits or capitals.
        colour: Name of its colour.
        split: Split of the face.
        options: Range of sizes.
    """
    low, high = options.capitals_px
    height_px = int(rng.integers(max(low, 20) if len(text) == 1 else low, high + 1))
    face, spacing = random_face(rng, split), float(rng.uniform(0.0, 0.12))
    lettering = set_text(face, text, height_px, spacing * height_px)
    while lettering.size_px[0] > _WIDEST_TEXT_PX and height_px > low:
        height_px = max(low, height_px * _WIDEST_TEXT_PX // (lettering.size_px[0] + 1))
        lettering = set_text(face, text, height_px, spacing * height_px)
    if split == "train" and rng.random() < _REDRAWN_SHARE:
        lettering = redrawn(rng, lettering)
    rgb = tinted(rng, colour)
    kind = "number" if text[0].isdigit() else "word"
    plate = opposite(rgb)
    return Player(kind, colour, rgb, lettering, 0.0, 0.0, text, _backing(rng), plate)


def tinted(rng: np.random.Generator, colour: str) -> RGB:
    """A named colour, a little off."""
    red, green, blue = (int(np.clip(level + rng.integers(-14, 15), 0, 255)) for level in COLOURS[colour])
    return red, green, blue


def meets(box: Boxes, boxes: Boxes) -> bool:
    """True if a box [4] overlaps any of boxes [N, 4]."""
    disjoint = (boxes[:, 0] >= box[2]) | (boxes[:, 2] <= box[0]) | (boxes[:, 1] >= box[3]) | (boxes[:, 3] <= box[1])
    return not bool(disjoint.all())


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
    """True if it could be taken for another one from one frame to the next: same kind, and either may change."""
    for other in cast:
        if (other.kind, other.text) != (player.kind, player.text):
            continue
        colours = {player.colour, player.second[0]} & {other.colour, other.second[0]} - {""}
        changing = any(p.step_px != (0.0, 0.0) or p.enters or p.leaves < 1000 for p in (player, other))
        if changing and colours:
            return True
        if player.turns_at < 1000 or other.turns_at < 1000:
            return True
    return False
