"""Work on the host: colour conversion, the box pyramid, and updates of levels.

Coefficients follow ITU-R BT.601-7, BT.709-6, BT.2020-2, SMPTE 240M and FCC 73.682 through Kr and Kb. Chroma is
replicated, never interpolated: so a tile's texels depend on that tile's samples alone, and the result is that of
swscale's unscaled converters (which serve even heights).
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.store.planes import (
    PaddedPlanes,
    Plane,
    PlaneFormat,
    Rectangle,
    area,
    box_around,
    mask_of,
    tiled,
    tiles_of,
)
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

WIDENED: dict[int, tuple[type[np.uint16 | np.uint32], int]] = {2: (np.uint16, 0x0101), 4: (np.uint32, 0x01010101)}
"""Integers that hold a sample 2 or 4 times, and the factor that puts it there."""

BAND_PX = 1 << 18
"""Texels converted at a time, so that the intermediate picture (3 bytes each) stays in a core's cache."""

CACHED_OFFSET = 16
"""Bytes past a multiple of 64 at which scratch memory begins: cv2 writes past the cache where its target is aligned to
32 bytes, and the next step reads it at once."""


def rgb_matrix(colour: Colour) -> npt.NDArray[np.float64]:
    """float64 [3, 4]: (y, u, v, 1) of 0..255 to (r, g, b) of 0..255."""
    kr, kb = KR_KB[colour.matrix]
    kg = 1 - kr - kb
    scale = (1.0, 1.0, 1.0) if colour.full_range else (255 / 219, 255 / 224, 255 / 224)
    linear = np.array(
        [
            [1, 0, 2 * (1 - kr)],
            [1, -2 * kb * (1 - kb) / kg, -2 * kr * (1 - kr) / kg],
            [1, 2 * (1 - kb), 0],
        ]
    ) * np.array(scale)
    black = np.array([0 if colour.full_range else 16, 128, 128])
    return np.column_stack((linear, -linear @ black - TRUNCATION))


class ColourConverter:
    """Converts rectangles of padded planes to RGB; scratch memory is made once."""

    def __init__(self, fmt: PlaneFormat) -> None:
        self._layout = fmt.layout
        self._sy, self._sx = fmt.subsampling
        if fmt.layout == "yuv":
            self._matrix = rgb_matrix(fmt.colour)
            size = max(BAND_PX, TILE_PX * fmt.grid.padded_width_px)
            self._u, self._v = (_scratch(size) for _ in range(2))
            self._yuv, self._rgb = (_scratch(size * 3) for _ in range(2))

    def convert(self, padded: tuple[Plane, ...], rectangle: Rectangle, level0: Plane) -> None:
        """Writes the rectangle's texels into `level0` uint8 [H, W, 3]."""
        row0, col0, row1, col1 = (edge * TILE_PX for edge in rectangle)
        if self._layout == "gray":
            area = padded[0][row0:row1, col0:col1]
            level0[row0:row1, col0:col1] = area[..., None]
        elif self._layout == "yuv":
            step = max(TILE_PX, BAND_PX // (col1 - col0) // TILE_PX * TILE_PX)
            for top in range(row0, row1, step):
                bottom = min(top + step, row1)
                self._convert_band(padded, (top, col0, bottom, col1), level0[top:bottom, col0:col1])

    def _convert_band(self, padded: tuple[Plane, ...], area: Rectangle, out: Plane) -> None:
        top, left, bottom, right = area
        height, width = bottom - top, right - left
        luma = padded[0][top:bottom, left:right]
        u, v = (
            self._widened(plane[top // self._sy : bottom // self._sy, left // self._sx : right // self._sx], scratch)
            for plane, scratch in zip(padded[1:], (self._u, self._v), strict=True)
        )
        yuv = self._yuv[: height * width * 3].reshape(height, width, 3)
        for phase in range(self._sy):
            cv2.merge((luma[phase :: self._sy], u, v), dst=yuv[phase :: self._sy])
        if out.flags.c_contiguous:
            cv2.transform(yuv, self._matrix, dst=out)
            return
        # cv2.transform runs twice as fast on contiguous rows, more than the copy costs.
        rgb = self._rgb[: height * width * 3].reshape(height, width, 3)
        cv2.transform(yuv, self._matrix, dst=rgb)
        out[:] = rgb

    def _widened(self, plane: Plane, scratch: Plane) -> Plane:
        """Each sample repeated `sx` times along its row, by one multiplication."""
        height, width = plane.shape
        if self._sx == 1:
            return plane
        wide, ones = WIDENED[self._sx]
        out = scratch[: height * width * self._sx].view(wide).reshape(height, width)
        np.multiply(plane, ones, out=out, dtype=wide)
        return out.view(np.uint8)


def _scratch(size: int) -> Plane:
    memory = np.empty(size + 64 + CACHED_OFFSET, np.uint8)
    start = -memory.ctypes.data % 64 + CACHED_OFFSET
    return memory[start : start + size]


def allocate_levels(rows: int, cols: int, levels: int = LEVELS) -> tuple[Plane, ...]:
    """Zeroed uint8 arrays [rows * 32 >> level, cols * 32 >> level, 3], the finest first."""
    sides = (TILE_PX >> level for level in range(levels))
    return tuple(np.zeros((rows * side, cols * side, 3), np.uint8) for side in sides)


def refresh(levels: tuple[Plane, ...], rectangle: Rectangle) -> None:
    """Recomputes the other levels of a rectangle of tiles from level 0, in place.

    cv2's INTER_AREA by 2 equals the box filter bit for bit. As 32 = 2**5, no texel of a tile depends on another
    tile, so refreshing what changed gives the same bytes as refreshing all.
    """
    row0, col0, row1, col1 = rectangle
    for level in range(1, len(levels)):
        fine, coarse = TILE_PX >> (level - 1), TILE_PX >> level
        source = levels[level - 1][row0 * fine : row1 * fine, col0 * fine : col1 * fine]
        target = levels[level][row0 * coarse : row1 * coarse, col0 * coarse : col1 * coarse]
        cv2.resize(source, target.shape[1::-1], dst=target, interpolation=cv2.INTER_AREA)


STRIP_TILES = 64
"""Tiles laid side by side at a time: 400 KB of planes and texels, which a core's own cache holds."""

# Costs are in tiles of a whole frame, about 1.2 µs each on a 2023 server core.

RECTANGLE_COST = 25
"""What a rectangle costs beside its tiles, for the calls that it takes."""

STRIP_COST = 4
"""What a tile costs in a strip."""

SMALL_TILES = 8
"""Area below which a rectangle costs more than its tiles in a strip."""


class LevelUpdater:
    """Owns the texture's levels and its copy of the planes: `levels[l]` uint8 [rows * 32 >> l, cols * 32 >> l, 3].

    Large rectangles are converted in place. Small ones are laid side by side into a strip, because each call has its
    price. Where that would cost more than the whole box around them, the box is done: conversion is a pure function of
    the planes' copy, so tiles that are not dirty keep their bytes.
    """

    def __init__(self, fmt: PlaneFormat, levels: int = LEVELS) -> None:
        """`levels`: how many to keep, from the finest; one where hardware makes the others."""
        self._converter = ColourConverter(fmt)
        self.levels, self.planes = _allocate(fmt, fmt.grid.rows, fmt.grid.cols, levels)
        self._strip_levels, self._strip_planes = _allocate(fmt, 1, STRIP_TILES, levels)

    def update(self, planes: FramePlanes, rectangles: tuple[Rectangle, ...]) -> None:
        """Takes the rectangles from `planes` and recomputes their texels on all levels."""
        areas = [area(rectangle) for rectangle in rectangles]
        box = box_around(rectangles)
        if sum(map(_cost, areas)) > RECTANGLE_COST + area(box):
            self.planes.take_some(planes, box, mask_of(rectangles, box))
            large, tiles = [box], tiles_of(())
        else:
            sized = list(zip(areas, rectangles, strict=True))
            large = [rectangle for tiles_in, rectangle in sized if tiles_in >= SMALL_TILES]
            tiles = tiles_of([rectangle for tiles_in, rectangle in sized if tiles_in < SMALL_TILES])
            for rectangle in large:
                self.planes.take(planes, rectangle)
            self.planes.take_tiles(planes, tiles)
        for rectangle in large:
            self._converter.convert(self.planes.padded, rectangle, self.levels[0])
            refresh(self.levels, rectangle)
        for start in range(0, len(tiles), STRIP_TILES):
            self._update_strip(tiles[start : start + STRIP_TILES])

    def _update_strip(self, tiles: npt.NDArray[np.intp]) -> None:
        rows, cols = tiles.T
        count = len(tiles)
        strip = self._strip_planes
        for target, source, tile in zip(strip.padded, self.planes.padded, strip.tile_shapes, strict=True):
            tiled(target, *tile)[0, :, :count] = tiled(source, *tile)[rows, :, cols].T
        self._converter.convert(strip.padded, (0, 0, 1, count), self._strip_levels[0])
        refresh(self._strip_levels, (0, 0, 1, count))
        for level, (target, source) in enumerate(zip(self.levels, self._strip_levels, strict=True)):
            side = TILE_PX >> level
            tiled(target, side, side)[rows, :, cols] = tiled(source, side, side)[0, :, :count].T


def _allocate(fmt: PlaneFormat, rows: int, cols: int, count: int) -> tuple[tuple[Plane, ...], PaddedPlanes]:
    """Zeroed levels and planes for a grid of tiles. An RGB stream's only plane is level 0 itself."""
    levels = allocate_levels(rows, cols, count)
    if fmt.layout == "rgb":
        return levels, PaddedPlanes((levels[0],), fmt.steps())
    return levels, PaddedPlanes.allocate(fmt.steps(), rows, cols)


def _cost(tiles: int) -> int:
    """Of a rectangle by itself, in place or as tiles of a strip."""
    return RECTANGLE_COST + tiles if tiles >= SMALL_TILES else STRIP_COST * tiles
