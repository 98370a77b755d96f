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
from arr_coc.ops.rectangles import area, box_around, tiles_of

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
    """What to upload, and which way was chosen. `strip` int [n, 2] (row, col)."""

    way: Way
    blocks: tuple[Block, ...]
    strip: Tiles


def plan_upload(rectangles: tuple[Rectangle, ...], shape: tuple[int, int], way: Way | None = None) -> UploadPlan:
    """The cheapest way for disjoint, non-empty rectangles in a grid of `shape` tiles, or the one asked for.

    "whole" is what a texture without dirty tiles does: everything is copied and gets new mipmaps.
    """
    if way == "whole":
        everything = (0, 0, *shape)
        return UploadPlan("whole", (Block(everything, tiles_of([everything])),), tiles_of(()))
    small = [rectangle for rectangle in rectangles if area(rectangle) < SMALL_TILES]
    large = [rectangle for rectangle in rectangles if area(rectangle) >= SMALL_TILES]
    box = box_around(rectangles)
    partly = sum(BLOCK_COST + area(rectangle) for rectangle in large) + STRIP_COST * sum(map(area, small))
    if way == "box" or (way is None and partly > BLOCK_COST + area(box)):
        return UploadPlan("box", (Block(box, tiles_of(rectangles)),), tiles_of(()))
    blocks = tuple(Block(rectangle, tiles_of([rectangle])) for rectangle in large)
    return UploadPlan("parts", blocks, tiles_of(small))


def cheaper(rectangles: tuple[Rectangle, ...], rectangle_cost: float) -> tuple[Rectangle, ...]:
    """The rectangles, or the box around them where that costs less; a rectangle's cost is in tiles, beside its own."""
    box = box_around(rectangles)
    apart = sum(rectangle_cost + area(rectangle) for rectangle in rectangles)
    return (box,) if apart > rectangle_cost + area(box) else rectangles
