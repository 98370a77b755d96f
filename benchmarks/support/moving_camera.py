"""Pictures of a camera at rest, over which something moves, at any media time, and a clip of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import av
import cv2
import numpy as np

from arr_coc.qwen.preprocess import Rgb
from arr_coc.types import TILE_PX, TileGrid
from stream.scenes import load_scene
from stream.scenes.catalogue import street

SIZE_PX = (1920, 1080)
"""Width and height."""

TILES_PER_S = 4
"""Speed of the thing that moves, down and to the right: in two seconds it leaves all tiles that it covered."""

NOISE_SIGMA = 2.0

SceneName = Literal["still", "still street", "noise", "1 %", "5 %", "everything"]
SHARES: dict[SceneName, float] = {"1 %": 0.01, "5 %": 0.05}
"""Tiles that differ after two seconds: those that the thing covered, and those that it covers then."""


@dataclass(frozen=True)
class MovingCamera:
    """One scene: two shapes on a plain ground, `still` bit by bit, of which a snapshot chooses the same tokens each
    time; a `still street`, of which it does not; the street with the `noise` of a sensor; with something that moves, so
    that `1 %` or `5 %` of the tiles differ after two seconds; or `everything`, a pan over a ground that has no calm
    tile."""

    scene: SceneName
    size_px: tuple[int, int] = SIZE_PX

    def picture(self, at_s: float) -> Rgb:
        """Return the picture uint8 [H, W, 3] at a media time."""
        if self.scene == "everything":
            step_px = round(TILE_PX * TILES_PER_S * at_s)
            return np.roll(self._texture, (step_px // 2, step_px), (0, 1))
        if self.scene == "noise":
            noise = np.random.default_rng(round(1e3 * at_s)).integers(0, len(self._noise))
            return cv2.add(self._ground, self._noise[noise], dtype=cv2.CV_8U)
        picture = self._ground.copy()
        if self.scene in SHARES:
            top, left, height, width = self.box_px(at_s)
            picture[top : top + height, left : left + width] = self._thing[:height, :width]
        return picture

    def box_px(self, at_s: float) -> tuple[int, int, int, int]:
        """Return top, left, height and width of the thing that moves."""
        grid = self.grid
        count = SHARES[self.scene] * grid.rows * grid.cols / 2
        rows = max(1, round(math.sqrt(count / 2)))
        cols = max(1, round(count / rows))
        row_px, col_px = self.size_px[1] / grid.rows, self.size_px[0] / grid.cols
        top = (1 + TILES_PER_S * at_s) % (grid.rows - rows)
        left = (1 + TILES_PER_S * at_s) % (grid.cols - cols)
        # A pixel inside the tiles' edges on each side, as resizing the picture to whole tiles mixes neighbours.
        edges_px = [top * row_px + 1, left * col_px + 1, rows * row_px - 2, cols * col_px - 2]
        height, width = round(edges_px[2]), round(edges_px[3])
        return math.ceil(edges_px[0]), math.ceil(edges_px[1]), height, width

    @property
    def grid(self) -> TileGrid:
        """Tiles of the picture, of which the last row and column may be cut."""
        return TileGrid.of(self.size_px[1], self.size_px[0])

    @cached_property
    def _ground(self) -> Rgb:
        if self.scene == "still":
            plain: Rgb = cv2.resize(load_scene("hd").render(0), self.size_px, interpolation=cv2.INTER_AREA)
            return plain
        return street(*self.size_px)

    @cached_property
    def _thing(self) -> Rgb:
        """What moves: a part of the same picture in other colours, from its middle on."""
        middle = self.size_px[1] // 2, self.size_px[0] // 2
        return np.ascontiguousarray(255 - self._ground[middle[0] :, middle[1] :])

    @cached_property
    def _texture(self) -> Rgb:
        """A ground that differs everywhere from what it is a tile further on."""
        grain = np.random.default_rng(1).normal(0, 1, (*self.size_px[::-1], 3)).astype(np.float32)
        blurred = cv2.GaussianBlur(grain, (0, 0), TILE_PX / 4)
        texture: Rgb = (128 + 45 * blurred / blurred.std()).clip(0, 255).astype(np.uint8)
        return texture

    @cached_property
    def _noise(self) -> np.ndarray:
        """Noise of some frames, int16 [N, H, W, 3]."""
        shape = (5, *self.size_px[::-1], 3)
        noise: np.ndarray = np.random.default_rng(2).normal(0, NOISE_SIGMA, shape).astype(np.float32).round()
        return noise.astype(np.int16)

    def write_clip(self, path: Path, seconds: float, fps: int = 30) -> None:
        """Write the scene as H.264."""
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=fps, options={"preset": "veryfast", "crf": "20"})
            stream.width, stream.height, stream.pix_fmt = *self.size_px, "yuv420p"
            for index in range(round(seconds * fps)):
                picture = self.picture(index / fps)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())


def changed_share(picture: Rgb, other: Rgb) -> float:
    """Return the share of tiles of two pictures in which any mean of 4×4 pixels differs by more than 12."""
    grid = TileGrid.of(picture.shape[0], picture.shape[1])
    means = [
        cv2.resize(image, (8 * grid.cols, 8 * grid.rows), interpolation=cv2.INTER_AREA).astype(int)
        for image in (picture, other)
    ]
    differs = np.abs(means[0] - means[1]).reshape(grid.rows, 8, grid.cols, 8 * 3).max(axis=(1, 3)) > 12
    return float(differs.mean())
