"""Textures in host memory: colour conversion, the box pyramid, pixels of regions; the reference of the kernel's.

Coefficients follow ITU-R BT.601-7, BT.709-6, BT.2020-2, SMPTE 240M and FCC 73.682 through Kr and Kb. Chroma is
replicated, never interpolated: so a tile's texels depend on that tile's samples alone, and the result is that of
swscale's unscaled converters (which serve even heights).
"""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.texture.packing import Rectangle
from arr_coc.texture.regions import FOOTPRINTS
from arr_coc.texture.store.planes import Mask, Plane, PlaneFormat, Thresholds, differing_tiles
from arr_coc.types import LEVELS, TILE_PX, Colour, FramePlanes, Matrix

KR_KB: dict[Matrix, tuple[float, float]] = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
    "smpte240m": (0.212, 0.087),
    "fcc": (0.30, 0.11),
}

TRUNCATION = 0.75
"""swscale's converters truncate intermediate results, up to 3 below the exact value; this keeps the two within 2/255.
"""

STEPS = 32
"""Fixed-point steps of one in a sum of products; the largest sum, 550, then fits into 16 bits."""


def rgb_matrix(colour: Colour) -> npt.NDArray[np.float64]:
    """float64 [3, 4]: (y, u, v, 1) of 0..255 to (r, g, b) of 0..255."""
    kr, kb = KR_KB[colour.matrix]
    kg = 1 - kr - kb
    if colour.full_range:
        scale = (1.0, 1.0, 1.0)
    else:
        scale = (255 / 219, 255 / 224, 255 / 224)
    linear = np.array(
        [
            [1, 0, 2 * (1 - kr)],
            [1, -2 * kb * (1 - kb) / kg, -2 * kr * (1 - kr) / kg],
            [1, 2 * (1 - kb), 0],
        ]
    ) * np.array(scale)
    black = np.array([0 if colour.full_range else 16, 128, 128])
    return np.column_stack((linear, -linear @ black - TRUNCATION))


def fixed_point(colour: Colour) -> tuple[list[int], list[int]]:
    """`rgb_matrix` in 16-bit integers: factors of y, of v in red, of u and v in green, of u in blue; offsets.

    A product is that of 128·y, or 256·(u − 128), with a factor, divided by 2**15 and rounded: in `STEPS`. The sum of
    the products and the offset, shifted down, is the rounded colour.
    """
    matrix = rgb_matrix(colour)
    chroma = [matrix[0, 2], matrix[1, 1], matrix[1, 2], matrix[2, 1]]
    factors = [round(matrix[0, 0] * STEPS * 2**8), *(round(value * STEPS * 2**7) for value in chroma)]
    at_grey = matrix[:, 3] + 128 * (matrix[:, 1] + matrix[:, 2])
    return factors, [round(value * STEPS) + STEPS // 2 for value in at_grey]


def to_rgb(planes: tuple[Plane, ...], colour: Colour) -> Plane:
    """Planes y, u and v [H, W] as uint8 [H, W, 3]."""
    (for_y, *for_chroma), offsets = fixed_point(colour)
    samples = np.arange(256)
    luma, red_v, green_u, green_v, blue_u = (
        ((steps * factor >> 14) + 1) >> 1
        for steps, factor in [(samples * 128, for_y), *(((samples - 128) * 256, factor) for factor in for_chroma)]
    )
    y, u, v = planes
    chroma = red_v[v], green_u[u] + green_v[v], blue_u[u]
    channels = [(luma[y] + part + offset) // STEPS for part, offset in zip(chroma, offsets, strict=True)]
    return np.stack(channels, axis=2).clip(0, 255).astype(np.uint8)


def page_zeros(*shape: int) -> Plane:
    """Return a zeroed uint8 array on separate pages, so that its rows begin at whole cache lines for the kernel."""
    size = math.prod(shape)
    return np.frombuffer(mmap.mmap(-1, size), np.uint8, size).reshape(shape)


def allocate_levels(rows: int, cols: int, levels: int = LEVELS) -> tuple[Plane, ...]:
    """Zeroed uint8 arrays [rows * 32 >> level, cols * 32 >> level, 3], the finest first."""
    sides = (TILE_PX >> level for level in range(levels))
    return tuple(page_zeros(rows * side, cols * side, 3) for side in sides)


def refresh(levels: tuple[Plane, ...], rectangle: Rectangle) -> None:
    """Recomputes the other levels of a rectangle of tiles from level 0, in place.

    cv2's INTER_AREA by 2 equals the box filter bit for bit. As 32 = 2**5, no texel of a tile depends on another
    tile, so refreshing what changed gives the same bytes as refreshing all.
    """
    row0, col0, row1, col1 = rectangle
    for level in range(1, len(levels)):
        fine = TILE_PX >> (level - 1)
        coarse = TILE_PX >> level
        source = levels[level - 1][row0 * fine : row1 * fine, col0 * fine : col1 * fine]
        target = levels[level][row0 * coarse : row1 * coarse, col0 * coarse : col1 * coarse]
        cv2.resize(source, target.shape[1::-1], dst=target, interpolation=cv2.INTER_AREA)


def gather(levels: tuple[Plane, ...], regions: npt.NDArray[np.int64]) -> Plane:
    """Return the pixels of regions [K, 3] (shape, row, col) that exist: uint8 [K, 3, 32, 32], edge-clamped."""
    out = np.empty((len(regions), 3, TILE_PX, TILE_PX), np.uint8)
    for code in np.unique(regions[:, 0]).tolist():
        footprint = FOOTPRINTS[code]
        slots = np.flatnonzero(regions[:, 0] == code)
        level = levels[footprint.level]
        boxes = (footprint.down, footprint.across)
        rows, cols = (
            np.minimum(regions[slots, axis + 1, None] * side + np.arange(side), level.shape[axis] - 1)
            for axis, side in enumerate(TILE_PX * box for box in boxes)
        )
        texels = level[rows[:, :, None], cols[:, None]].reshape(-1, TILE_PX, boxes[0], TILE_PX, boxes[1], 3)
        means = (texels.sum(axis=(2, 4), dtype=np.uint16) + footprint.texels // 2) // footprint.texels
        out[slots] = means.transpose(0, 3, 1, 2)
    return out


class HostTexture(ABC):
    """Levels of a texture in host memory, and the planes that they show, padded by replication to whole tiles.

    `planes` are the planes without padding. An RGB stream's only plane is level 0 itself.
    """

    name: str
    """Name of the kernel, for people."""

    def __init__(self, fmt: PlaneFormat, thresholds: Thresholds, levels: int = LEVELS) -> None:
        """`levels`: number of levels to keep, from the finest; one if hardware makes the others."""
        self._levels = allocate_levels(*fmt.grid.shape, levels)
        rows = fmt.grid.padded_height_px
        cols = fmt.grid.padded_width_px
        self._padded = tuple(
            self._levels[0] if fmt.layout == "rgb" else page_zeros(rows // down, cols // across)
            for down, across in fmt.steps()
        )
        self.planes: tuple[Plane, ...] = tuple(
            padded[: -(-fmt.height_px // down), : -(-fmt.width_px // across)]
            for padded, (down, across) in zip(self._padded, fmt.steps(), strict=True)
        )
        self._format = fmt
        self._thresholds = thresholds

    @abstractmethod
    def compare(self, planes: FramePlanes) -> Mask:
        """Return the tiles of a frame that differ from what is held: bool [rows, cols]."""

    @abstractmethod
    def update(self, planes: FramePlanes, dirty: Mask) -> None:
        """Write the tiles `dirty` bool [rows, cols] of a frame, on all levels."""

    def read(self, level: int) -> Plane:
        """One level that is kept: uint8 [rows * 32 >> level, cols * 32 >> level, 3], always in the same memory.

        It shows the last update until the next one. Any number of threads read, none while one updates.
        """
        return self._levels[level]

    @abstractmethod
    def gather(self, regions: npt.NDArray[np.int64]) -> Plane:
        """Return the pixels of regions [K, 3] (shape, row, col) that exist: uint8 [K, 3, 32, 32], edge-clamped."""


class ReferenceTexture(HostTexture):
    """By NumPy and OpenCV.

    The box around the dirty tiles is converted whole: of the same samples, its other tiles become what they are.
    """

    name = "NumPy and OpenCV"

    def compare(self, planes: FramePlanes) -> Mask:
        return differing_tiles(self._format, self.planes, planes.planes, self._thresholds)

    def update(self, planes: FramePlanes, dirty: Mask) -> None:
        if not dirty.any():
            return
        rows, cols = (slice(int(places.min()), int(places.max()) + 1) for places in np.nonzero(dirty))
        parts = []
        for padded, frame, (down, across) in zip(self._padded, planes.planes, self._format.steps(), strict=True):
            box = _samples(rows, TILE_PX // down), _samples(cols, TILE_PX // across)
            old = padded[box]
            new = frame[box]
            new = np.pad(
                new, [(0, target - size) for target, size in zip(old.shape, new.shape, strict=True)], mode="edge"
            )
            changed = dirty[rows, cols].repeat(TILE_PX // down, axis=0).repeat(TILE_PX // across, axis=1)
            old[changed] = new[changed]
            parts.append(old.repeat(down, axis=0).repeat(across, axis=1))
        level0 = self._levels[0][_samples(rows, TILE_PX), _samples(cols, TILE_PX)]
        if self._format.layout == "gray":
            level0[:] = parts[0][..., None]
        elif self._format.layout == "yuv":
            level0[:] = to_rgb(tuple(parts), self._format.colour)
        refresh(self._levels, (rows.start, cols.start, rows.stop, cols.stop))

    def gather(self, regions: npt.NDArray[np.int64]) -> Plane:
        return gather(self._levels, regions)


def _samples(tiles: slice, side: int) -> slice:
    return slice(tiles.start * side, tiles.stop * side)
