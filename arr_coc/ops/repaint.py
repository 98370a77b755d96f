"""Brings tiles of the texture up to date, by whichever way costs least."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.ops.colour import ColourConverter
from arr_coc.ops.mipmaps import allocate_levels, refresh
from arr_coc.ops.planes import Plane, PlaneCopy, PlaneFormat, Rectangle, tiled
from arr_coc.types import FramePlanes

STRIP_TILES = 64
"""Tiles laid side by side at a time: 400 KB of planes and texels, which a core's own cache holds."""

SMALL_TILES = 8
"""Area below which a rectangle's calls cost more than laying its tiles into a strip (20 µs against 2.5 µs a tile)."""

STRIP_COST = 3
"""What a tile costs in a strip, in tiles of a large rectangle (3.6 µs against 1.2 µs)."""


class Repainter:
    """Owns the texture's levels and its copy of the planes: `levels[l]` uint8 [rows * 32 >> l, cols * 32 >> l, 3].

    Large rectangles are converted in place. Small ones are laid side by side into a strip, because each call has its
    price. Where that would cost more than doing everything, everything is done: conversion is a pure function of the
    planes' copy, so tiles that are not dirty keep their bytes.
    """

    def __init__(self, fmt: PlaneFormat) -> None:
        self._converter = ColourConverter(fmt)
        self._grid = fmt.grid
        self.levels, self.planes = _allocate(fmt, fmt.grid.rows, fmt.grid.cols)
        self._strip_levels, self._strip_planes = _allocate(fmt, 1, STRIP_TILES)

    def repaint(self, planes: FramePlanes, rectangles: tuple[Rectangle, ...]) -> None:
        """Takes the rectangles from `planes` and recomputes their texels on all levels."""
        large = tuple(rectangle for rectangle in rectangles if _area(rectangle) >= SMALL_TILES)
        small = tuple(rectangle for rectangle in rectangles if _area(rectangle) < SMALL_TILES)
        for rectangle in large:
            self.planes.take(planes, rectangle)
        if small:
            tiles = _tiles_of(small)
            self.planes.take_tiles(planes, tiles)
            if STRIP_COST * len(tiles) + sum(map(_area, large)) > self._grid.tiles:
                large = ((0, 0, *self._grid.shape),)
            else:
                for start in range(0, len(tiles), STRIP_TILES):
                    self._repaint_strip(tiles[start : start + STRIP_TILES])
        for rectangle in large:
            self._converter.convert(self.planes.padded, rectangle, self.levels[0])
            refresh(self.levels, rectangle)

    def _repaint_strip(self, tiles: npt.NDArray[np.intp]) -> None:
        rows, cols = tiles.T
        count = len(tiles)
        for source, strip in zip(self.planes.padded, self._strip_planes.padded, strict=True):
            tiled(strip, 1, STRIP_TILES)[0, :, :count] = tiled(source, *self._grid.shape)[rows, :, cols].swapaxes(0, 1)
        self._converter.convert(self._strip_planes.padded, (0, 0, 1, count), self._strip_levels[0])
        refresh(self._strip_levels, (0, 0, 1, count))
        for strip, target in zip(self._strip_levels, self.levels, strict=True):
            fresh = tiled(strip, 1, STRIP_TILES)[0, :, :count].swapaxes(0, 1)
            tiled(target, *self._grid.shape)[rows, :, cols] = fresh


def _allocate(fmt: PlaneFormat, rows: int, cols: int) -> tuple[tuple[Plane, ...], PlaneCopy]:
    """Zeroed levels and planes for a grid of tiles. An RGB stream's only plane is level 0 itself."""
    levels = allocate_levels(rows, cols)
    if fmt.layout == "rgb":
        return levels, PlaneCopy((levels[0],), fmt.steps())
    return levels, PlaneCopy.allocate(fmt.steps(), rows, cols)


def _area(rectangle: Rectangle) -> int:
    row0, col0, row1, col1 = rectangle
    return (row1 - row0) * (col1 - col0)


def _tiles_of(rectangles: tuple[Rectangle, ...]) -> npt.NDArray[np.intp]:
    """int [n, 2] (row, col) of every tile."""
    tiles = [
        (row, col) for row0, col0, row1, col1 in rectangles for row in range(row0, row1) for col in range(col0, col1)
    ]
    return np.array(tiles, np.intp).reshape(-1, 2)
