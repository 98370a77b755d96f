"""How dirty tiles get into the texture: as blocks, as a strip of single tiles, or as the box around them.

A *block* is a rectangle laid into the ring row by row. A plain copy brings it into level 0, which costs calls and
little for each texel. Tiles of a *strip* lie side by side; the kernel that makes their other levels stores level 0
too, which costs each texel and no calls. Many scattered tiles cost more in either way than the whole box around them,
whose other tiles keep their bytes: then the box is one block. Only dirty tiles get new mipmaps in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from arr_coc.ops.planes import Rectangle
from arr_coc.ops.repaint import tiles_of

Tiles = npt.NDArray[np.intp]
Way = Literal["parts", "box", "whole"]

# Costs are in tiles of a box, about 0.6 µs each with llvmpipe on a 2023 server core: convert, then copy to level 0.

BLOCK_COST = 40
"""What a block costs beside its tiles, for the calls that it takes."""

STRIP_COST = 8
"""What a tile costs in a strip, more than its mipmaps would alone."""

SMALL_TILES = 6
"""Area below which a rectangle costs more than its tiles in a strip."""


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of tiles to copy, and its dirty tiles int [n, 2] (row, col)."""

    rectangle: Rectangle
    dirty: Tiles


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """What to upload for one layer, and which way was chosen. `strip` int [n, 2] (row, col)."""

    way: Way
    blocks: tuple[Block, ...]
    strip: Tiles


def plan_upload(rectangles: tuple[Rectangle, ...], shape: tuple[int, int], way: Way | None = None) -> UploadPlan:
    """The cheapest way for disjoint, non-empty rectangles in a grid of `shape` tiles, or the one asked for.

    "whole" is what a texture without dirty tiles does: everything is copied and gets new mipmaps.
    """
    if way == "whole":
        everything = (0, 0, *shape)
        return UploadPlan("whole", (Block(everything, tiles_in(everything)),), _none())
    small = [rectangle for rectangle in rectangles if _area(rectangle) < SMALL_TILES]
    large = [rectangle for rectangle in rectangles if _area(rectangle) >= SMALL_TILES]
    box = _box_around(rectangles)
    partly = sum(BLOCK_COST + _area(rectangle) for rectangle in large) + STRIP_COST * sum(map(_area, small))
    if way == "box" or (way is None and partly > BLOCK_COST + _area(box)):
        return UploadPlan("box", (Block(box, tiles_of(rectangles)),), _none())
    blocks = tuple(Block(rectangle, tiles_in(rectangle)) for rectangle in large)
    return UploadPlan("parts", blocks, tiles_of(small) if small else _none())


def cheaper(rectangles: tuple[Rectangle, ...], rectangle_cost: float) -> tuple[Rectangle, ...]:
    """The rectangles, or the box around them where that costs less; a rectangle's cost is in tiles, beside its own."""
    box = _box_around(rectangles)
    apart = sum(rectangle_cost + _area(rectangle) for rectangle in rectangles)
    return (box,) if apart > rectangle_cost + _area(box) else rectangles


def tiles_in(rectangle: Rectangle) -> Tiles:
    """Every tile of a rectangle, row by row: int [n, 2] (row, col)."""
    row0, col0, row1, col1 = rectangle
    return np.mgrid[row0:row1, col0:col1].reshape(2, -1).T


def _none() -> Tiles:
    return np.empty((0, 2), np.intp)


def _area(rectangle: Rectangle) -> int:
    row0, col0, row1, col1 = rectangle
    return (row1 - row0) * (col1 - col0)


def _box_around(rectangles: tuple[Rectangle, ...]) -> Rectangle:
    row0, col0, row1, col1 = zip(*rectangles, strict=True)
    return min(row0), min(col0), max(row1), max(col1)
