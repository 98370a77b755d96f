"""Brings tiles of the texture up to date, by whichever way costs least."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.ops.colour import ColourConverter
from arr_coc.ops.mipmaps import allocate_levels, refresh
from arr_coc.ops.planes import Plane, PlaneCopy, PlaneFormat, Rectangle, tiled
from arr_coc.ops.rectangles import area, box_around, mask_of, tiles_of
from arr_coc.types import LEVELS, TILE_PX, FramePlanes

STRIP_TILES = 64
"""Tiles laid side by side at a time: 400 KB of planes and texels, which a core's own cache holds."""

# Costs are in tiles of a whole frame, about 1.2 µs each on a 2023 server core.

RECTANGLE_COST = 25
"""What a rectangle costs beside its tiles, for the calls that it takes."""

STRIP_COST = 4
"""What a tile costs in a strip."""

SMALL_TILES = 8
"""Area below which a rectangle costs more than its tiles in a strip."""


class Repainter:
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

    def repaint(self, planes: FramePlanes, rectangles: tuple[Rectangle, ...]) -> None:
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
            self._repaint_strip(tiles[start : start + STRIP_TILES])

    def _repaint_strip(self, tiles: npt.NDArray[np.intp]) -> None:
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


def _allocate(fmt: PlaneFormat, rows: int, cols: int, count: int) -> tuple[tuple[Plane, ...], PlaneCopy]:
    """Zeroed levels and planes for a grid of tiles. An RGB stream's only plane is level 0 itself."""
    levels = allocate_levels(rows, cols, count)
    if fmt.layout == "rgb":
        return levels, PlaneCopy((levels[0],), fmt.steps())
    return levels, PlaneCopy.allocate(fmt.steps(), rows, cols)


def _cost(tiles: int) -> int:
    """Of a rectangle by itself, in place or as tiles of a strip."""
    return RECTANGLE_COST + tiles if tiles >= SMALL_TILES else STRIP_COST * tiles
