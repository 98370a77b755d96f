"""Planes of a stream: their format, and the tiles in which a frame differs from the texture.

The difference of each plane is reduced to *cells*: rounded means of its absolute values over 2×2 samples. A tile is
dirty if a cell exceeds `Thresholds.largest` (so a blinking cursor counts) or the tile's mean, rounded, exceeds
`Thresholds.mean`. Planes are judged one by one, because a change may leave luma as it was. Edge tiles are judged as
padded: by replication.

Noise. Two frames with independent noise of standard deviation s differ by s·√2: for s = 2 (and rounding to 8 bits)
the absolute difference has mean 2.28 and standard deviation 1.72. Over the 256 samples of a 4:2:0 chroma tile the mean
is 2.28 ± 0.11, to which two roundings add at most 0.3: the 3.5 that rounds to 4 lies eight deviations off. A cell
exceeds 12.25 with 16·Q(12.25·4 / (2·2.86)) = 16·Q(8.6) < 1e-15. Ten minutes of 1080p30 have 1.1e8 tile means and
1.4e10 cells: no false tile is to be expected from either.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.errors import ShapeError
from arr_coc.types import TILE_PX, Colour, FramePlanes, Layout, TileGrid

Plane = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
SUBSAMPLING = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class PlaneFormat:
    """Size, layout, subsampling and colour of a stream's frames: what a store is opened for.

    `subsampling` is (sy, sx) of the chroma planes; (1, 1) if there are none.
    """

    layout: Layout
    height_px: int
    width_px: int
    subsampling: tuple[int, int]
    colour: Colour

    @classmethod
    def of(cls, planes: FramePlanes) -> PlaneFormat:
        """Return the format of one frame. Raises ShapeError if its planes do not belong together."""
        expected = {"yuv": 3, "gray": 1, "rgb": 1}[planes.layout]
        if len(planes.planes) != expected:
            raise ShapeError(f"layout {planes.layout} has {expected} planes, got {len(planes.planes)}")
        for plane in planes.planes:
            if plane.dtype != np.uint8:
                raise ShapeError(f"planes hold uint8 samples, got {plane.dtype}")
        first = planes.planes[0]
        if planes.layout == "rgb":
            expected_shape = (*first.shape[:2], 3)
        else:
            expected_shape = first.shape[:2]
        if first.shape != expected_shape or first.size == 0:
            raise ShapeError(f"layout {planes.layout} does not fit a plane of shape {first.shape}")
        if planes.layout == "yuv":
            subsampling = _subsampling(planes)
        else:
            subsampling = (1, 1)
        return cls(planes.layout, first.shape[0], first.shape[1], subsampling, planes.colour)

    @property
    def grid(self) -> TileGrid:
        return TileGrid.of(self.height_px, self.width_px)

    def steps(self) -> tuple[tuple[int, int], ...]:
        """For each plane, how many texels one of its samples spans: (vertically, horizontally)."""
        if self.layout == "yuv":
            return ((1, 1), self.subsampling, self.subsampling)
        return ((1, 1),)


def _subsampling(planes: FramePlanes) -> tuple[int, int]:
    luma, u, v = (plane.shape for plane in planes.planes)
    for sy in SUBSAMPLING:
        for sx in SUBSAMPLING:
            if u == v == (-(-luma[0] // sy), -(-luma[1] // sx)):
                return sy, sx
    raise ShapeError(f"chroma planes {u} and {v} are not a 1, 2 or 4 fold subsampling of luma {luma}")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Above which difference, of 255, a tile is dirty: of its mean, or of its largest 2×2 mean."""

    mean: float = 3.5
    largest: float = 12.0


@dataclass(frozen=True, slots=True)
class Difference:
    """The outcome of one comparison: `dirty` bool [rows, cols]."""

    dirty: Mask

    @classmethod
    def everywhere(cls, grid: TileGrid) -> Difference:
        """Return all tiles dirty, for a frame that is not to be compared."""
        return cls(np.ones(grid.shape, bool))

    @property
    def dirty_share(self) -> float:
        return float(np.count_nonzero(self.dirty) / self.dirty.size)


def differing_tiles(
    fmt: PlaneFormat, old_planes: tuple[Plane, ...], planes: tuple[Plane, ...], thresholds: Thresholds
) -> Mask:
    """Return the tiles that differ between the planes of two frames, without padding: bool [rows, cols].

    Args:
        fmt: Format of both.
        old_planes: Planes of the earlier frame.
        planes: Planes of the later frame.
        thresholds: Differences from which a tile counts as changed.
    """
    dirty = np.zeros(fmt.grid.shape, bool)
    for old, new, (down, across) in zip(old_planes, planes, fmt.steps(), strict=True):
        largest, mean = _measures(cv2.absdiff(new, old), fmt.grid, (TILE_PX // down, TILE_PX // across))
        dirty |= (largest > thresholds.largest) | (mean > thresholds.mean)
    return dirty


def _measures(delta: Plane, grid: TileGrid, tile: tuple[int, int]) -> tuple[npt.NDArray, npt.NDArray]:
    """Return the largest cell and the rounded mean of each tile [rows, cols]; of three channels, the largest."""
    (rows, cols), (height, width) = grid.shape, tile
    below = rows * height - delta.shape[0]
    right = cols * width - delta.shape[1]
    cells = _halved(cv2.copyMakeBorder(delta, 0, below, 0, right, cv2.BORDER_REPLICATE))
    largest = cells.reshape(rows, height // 2, cols, width // 2, -1).max(axis=(1, 3, 4))
    means = _halved(cells).reshape(rows, height // 4, cols, width // 4, -1).mean(axis=(1, 3))
    return largest, np.rint(means).max(axis=2)


def _halved(source: Plane) -> Plane:
    """Apply the box filter (a + b + c + d + 2) >> 2."""
    return cv2.resize(source, (source.shape[1] // 2, source.shape[0] // 2), interpolation=cv2.INTER_AREA)
