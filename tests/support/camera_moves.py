"""Drawn clips in which every tile's motion is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import TILE_PX, FramePlanes, TileGrid

Picture = npt.NDArray[np.uint8]
Places = npt.NDArray[np.float64]
Pose = tuple[float, float, float, float]
"""Direction of a camera: pixels right and down of the middle, zoom, angle in degrees."""

HEIGHT, WIDTH = 448, 640
GRID = TileGrid.of(HEIGHT, WIDTH)
ROWS, COLS = GRID.shape


def document(seed: int, height: int = 2 * HEIGHT, width: int = 2 * WIDTH) -> Picture:
    """A page of lines of random letters: uint8 [height, width]."""
    rng = np.random.default_rng(seed)
    page = np.full((height, width), 235, np.uint8)
    for top in range(30, height, 30):
        words = ["".join(rng.choice(list("abcdefghiklmnoprstuvwy"), rng.integers(2, 9))) for _ in range(width // 40)]
        cv2.putText(page, " ".join(words), (0, top), cv2.FONT_HERSHEY_SIMPLEX, 0.6, 25, 1)
    return page


def clutter(seed: int, height: int = 2 * HEIGHT, width: int = 2 * WIDTH) -> Picture:
    """Rectangles and discs of many sizes and greys: uint8 [height, width]."""
    rng = np.random.default_rng(seed)
    ground = cv2.resize(rng.integers(40, 215, (9, 12), dtype=np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)
    for _ in range(height * width // 2500):
        x, y, side = int(rng.integers(width)), int(rng.integers(height)), int(rng.integers(4, 30))
        cv2.rectangle(ground, (x, y), (x + side, y + side), int(rng.integers(20, 235)), -1)
    return ground


def wall_with_picture(seed: int, height: int = 2 * HEIGHT, width: int = 2 * WIDTH) -> Picture:
    """A plain wall, and one picture in its middle: uint8 [height, width]."""
    wall = np.full((height, width), 150, np.uint8)
    top, left = height // 2 - 64, width // 2 - 80
    wall[top : top + 128, left : left + 160] = clutter(seed, 128, 160)
    return wall


def matrix_of(shape: tuple[int, ...], pose: Pose) -> Places:
    """The affine matrix [2, 3] from a wide picture of `shape` to the view of a camera in `pose`."""
    right, down, zoom, angle_deg = pose
    x, y = shape[1] / 2 + right, shape[0] / 2 + down
    matrix = cv2.getRotationMatrix2D((x, y), angle_deg, zoom)
    matrix[:, 2] += WIDTH / 2 - x, HEIGHT / 2 - y
    return matrix


def film(wide: Picture, pose: Pose) -> Picture:
    """The camera's picture: uint8 [448, 640]."""
    picture = cv2.warpAffine(
        wide, matrix_of(wide.shape, pose), (WIDTH, HEIGHT), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REFLECT_101
    )
    return np.asarray(picture, np.uint8)


def planes(picture: Picture) -> FramePlanes:
    return FramePlanes("gray", (np.ascontiguousarray(picture),))


def tile_middles() -> Places:
    """x and y of the tiles' middles, in pixels: [rows, cols, 2]."""
    down, right = np.mgrid[0:ROWS, 0:COLS]
    return np.stack([right, down], axis=-1) * float(TILE_PX) + (TILE_PX - 1) / 2


def through(matrix: Places, places: Places) -> Places:
    """Places [..., 2] (x, y) under an affine matrix."""
    return places @ matrix[:, :2].T + matrix[:, 2]


@dataclass(frozen=True)
class Step:
    """A frame, and the places of its tiles' middles in the frame before: x, y [rows, cols, 2]."""

    picture: Picture
    origin: Places

    @property
    def seen(self) -> npt.NDArray[np.bool_]:
        """Tiles of which all but the rim was in view."""
        x, y = self.origin[..., 0], self.origin[..., 1]
        return (x > 8) & (x < WIDTH - 8) & (y > 8) & (y < HEIGHT - 8)


def steps(wide: Picture, poses: Sequence[Pose]) -> Iterator[Step]:
    """The camera's frames along its poses; the first one comes from itself."""
    last = poses[0]
    for pose in poses:
        back = cv2.invertAffineTransform(matrix_of(wide.shape, pose))
        origin = through(matrix_of(wide.shape, last), through(back, tile_middles()))
        yield Step(film(wide, pose), origin)
        last = pose
