"""Frames of which a known part changes, for measuring texture updates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace

from arr_coc.types import TILE_PX, Colour, FramePlanes, TileGrid

SIZES = {"720p": TileGrid.of(720, 1280), "1080p": TileGrid.of(1080, 1920), "4K": TileGrid.of(2160, 3840)}

PICTURES = 4
"""Frames that take turns: more than a core's own cache holds, as from a decoder's pool."""

Mask = npt.NDArray[np.bool_]
Plane = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Case:
    """How two frames differ, and the targets: milliseconds, and how many times faster than the swscale peer."""

    share: float
    scattered: bool = False
    noise: float = 0.0
    target_ms: float | None = None
    target_ratio: float | None = None

    @property
    def name(self) -> str:
        where = "" if self.share in (0, 1) else ", scattered" if self.scattered else ", one block"
        return f"{100 * self.share:g} %{where}{', noise' if self.noise else ''}"


CASES = (
    Case(0.0, target_ms=0.3, target_ratio=10),
    Case(0.01),
    Case(0.01, scattered=True),
    Case(0.10, target_ms=0.7, target_ratio=4),
    Case(0.10, scattered=True),
    Case(0.50),
    Case(0.50, scattered=True),
    Case(1.0),
)

NOISY = (Case(0.0, noise=2.0), Case(0.10, noise=2.0))
"""At 1080p too."""


def changing_tiles(case: Case, grid: TileGrid) -> Mask:
    """Which tiles differ between one frame and the next: bool [rows, cols]."""
    count = round(case.share * grid.tiles)
    mask = np.zeros(grid.shape, bool)
    if case.scattered:
        mask.flat[np.random.default_rng(0).permutation(grid.tiles)[:count]] = True
    elif count:
        rows = min(grid.rows, round((count * grid.rows / grid.cols) ** 0.5))
        cols = min(grid.cols, round(count / rows))
        top, left = (grid.rows - rows) // 2, (grid.cols - cols) // 2
        mask[top : top + rows, left : left + cols] = True
    return mask


def make_frames(case: Case, grid: TileGrid) -> list[av.VideoFrame]:
    """A still picture of clutter, in which the changing tiles alternate between two brightnesses."""
    rng = np.random.default_rng(1)
    tiles = changing_tiles(case, grid)
    frames = []
    for index in range(PICTURES):
        frame = av.VideoFrame(grid.width_px, grid.height_px, "yuv420p")
        frame.colorspace, frame.color_range = Colorspace.ITU709, ColorRange.MPEG
        for number, target in enumerate(frame.planes):
            down = 1 if number == 0 else 2
            shown = _clutter(grid.height_px // down, grid.width_px // down, number).copy()
            mask = tiles.repeat(TILE_PX // down, axis=0).repeat(TILE_PX // down, axis=1)
            shown += 24 * (index % 2) * mask[: shown.shape[0], : shown.shape[1]]
            if case.noise:
                shown += rng.normal(0, case.noise, shown.shape)
            samples = np.frombuffer(target, np.uint8).reshape(-1, target.line_size)
            samples[:, : shown.shape[1]] = np.clip(np.rint(shown), 0, 255)
        frames.append(frame)
    return frames


@lru_cache(None)
def _clutter(height: int, width: int, seed: int) -> npt.NDArray[np.float32]:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width)).astype(np.float32)
    clutter: Any = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 4), None, 40, 200, cv2.NORM_MINMAX)
    return clutter


def planes_of(frame: av.VideoFrame) -> FramePlanes:
    """As a decoder gives them: 4:2:0."""
    planes = tuple(
        np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width]
        for plane in frame.planes
    )
    return FramePlanes("yuv", planes, Colour("bt709"), owner=frame)


def rgb_of(frame: av.VideoFrame) -> FramePlanes:
    """Converted already, so that what is left of an update is upload and mipmaps."""
    return FramePlanes("rgb", (frame.to_ndarray(format="rgb24"),))
