"""Who plays in a clip: shapes, numbers and words, their places, and what becomes of them from frame to frame."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from stream.scenes.drawing import RGB, Contour, box_of, fill
from stream.scenes.textures import Lettering, stamp
from training.truth import Box, Image, Seen

Backing = Literal["none", "plate", "outline", "faint"]
"""What text stands on: the bare ground, a plate, a thin outline; or it differs but little from the ground."""

FAINT = "faint"
"""The colour that is said of text hardly lighter or darker than its ground."""

PLATE_PX = 5
_LEAST_DISTANCE, _LEAST_BRIGHTNESS = 90, 28
"""Between ink and bare ground, as a distance in RGB and in brightness; text of less gets an outline."""

_LUMA = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True, slots=True)
class Player:
    """A thing with its part. Places are pixels of the scene, which equals the picture where the camera stands still.

    `body` is what is drawn, about (0, 0): contours, or lettering around it. It is there from frame `enters` until
    before frame `leaves`, moves `step_px` each frame, and from frame `turns_at` on has its second colour.
    """

    what: str
    colour: str
    rgb: RGB
    body: tuple[Contour, ...] | Lettering
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
        """Which way it goes."""
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
        """Its box in a frame, seen by a camera that has moved by so much; what lies outside is not cut off."""
        x, y = self._middle(frame, camera_px)
        if isinstance(self.body, Lettering):
            low = _corner(self.body, x, y)
            width, height = self.body.size_px
            return float(low[0]), float(low[1]), float(low[0] + width), float(low[1] + height)
        left, top, right, bottom = box_of(self.body)
        return left + x, top + y, right + x, bottom + y

    def swept_px(self, frames: int, margin_px: float) -> Box:
        """The box around all places that it takes, with a margin."""
        boxes = [self.box_px(frame) for frame in (0, frames - 1)]
        left, top = (min(box[i] for box in boxes) - margin_px for i in (0, 1))
        right, bottom = (max(box[i] for box in boxes) + margin_px for i in (2, 3))
        return left, top, right, bottom

    def seen(self, frame: int, size_px: tuple[int, int], camera_px: tuple[float, float] = (0.0, 0.0)) -> Seen | None:
        """What is to be seen of it in a frame; None if it is not there, or not wholly in the picture."""
        box = self.box_px(frame, camera_px)
        whole = box[0] >= 0 and box[1] >= 0 and box[2] <= size_px[0] and box[3] <= size_px[1]
        if not self.there(frame) or not whole:
            return None
        letters: tuple[Box, ...] = ()
        if isinstance(self.body, Lettering):
            left, top = box[:2]
            letters = tuple((left + b[0], top + b[1], left + b[2], top + b[3]) for b in self.body.boxes)
        colour = self.second[0] if frame >= self.turns_at else self.colour
        return Seen(self.what, colour, box, self.movement, self.text, letters)

    def draw(self, image: Image, frame: int, camera_px: tuple[float, float] = (0.0, 0.0)) -> None:
        """Draws it as it stands in a frame, if it is there."""
        if not self.there(frame):
            return
        rgb = self.second[1] if frame >= self.turns_at else self.rgb
        x, y = self._middle(frame, camera_px)
        if isinstance(self.body, Lettering):
            self._write(image, self.body, _corner(self.body, x, y), rgb)
        else:
            fill(image, tuple(points + np.array([x, y]) for points in self.body), rgb)

    def _middle(self, frame: int, camera_px: tuple[float, float]) -> tuple[float, float]:
        return (
            self.x_px + self.step_px[0] * frame - camera_px[0],
            self.y_px + self.step_px[1] * frame - camera_px[1],
        )

    def _write(self, image: Image, lettering: Lettering, corner_px: tuple[int, int], rgb: RGB) -> None:
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
    """A grey that a colour stands out from, and that nobody would call white or black."""
    return (172, 170, 164) if _LUMA @ rgb < 128 else (66, 68, 72)


def _close(ground: npt.NDArray[np.float64], rgb: RGB) -> bool:
    """Whether a colour is hard to tell from the ground."""
    difference = np.asarray(rgb) - ground
    return bool(np.linalg.norm(difference) < _LEAST_DISTANCE or abs(_LUMA @ difference) < _LEAST_BRIGHTNESS)


def _mean(ground: Image) -> npt.NDArray[np.float64]:
    """Its mean colour, float64 [3]; black where there is no ground."""
    return ground.reshape(-1, 3).mean(axis=0) if ground.size else np.zeros(3)


def _offset(ground: npt.NDArray[np.float64], contrast: int) -> RGB:
    """A colour so many levels lighter or darker."""
    red, green, blue = (int(np.clip(level + contrast, 0, 255)) for level in ground)
    return red, green, blue


def _corner(lettering: Lettering, x_px: float, y_px: float) -> tuple[int, int]:
    width, height = lettering.size_px
    return round(x_px - width / 2), round(y_px - height / 2)
