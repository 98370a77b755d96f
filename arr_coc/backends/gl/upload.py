"""Upload plan of dirty tiles, and its layout in the ring.

A *block* is a rectangle laid into the ring row by row. A plain copy brings it into level 0, which costs calls and
little for each texel. Tiles of a *strip* lie side by side; the kernel that makes their other levels stores level 0
too, which costs each texel and no calls. Many scattered tiles cost more in either way than the whole box around them,
whose other tiles keep their bytes: then the box is one block. Only dirty tiles get new mipmaps in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.backends.gl.buffers import align
from arr_coc.texture.packing import Rectangle, TilePacker
from arr_coc.texture.store.planes import Plane
from arr_coc.types import TILE_PX

Tiles = npt.NDArray[np.intp]
Way = Literal["parts", "box", "whole"]

# Costs are in tiles of a box, about 0.6 µs each with llvmpipe on a 2023 server core: convert, then copy to level 0.

BLOCK_COST = 40
"""Cost of a block's calls, in tiles, beside its tiles."""

SMALL_TILES = 6
"""Area below which a rectangle costs more than its tiles in a strip."""


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of tiles to copy, and its dirty tiles int [n, 2] (row, col)."""

    rectangle: Rectangle
    dirty: Tiles


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """Blocks and single tiles to upload, and the way that was chosen. `strip` int [n, 2] (row, col)."""

    way: Way
    blocks: tuple[Block, ...]
    strip: Tiles


def plan_upload(rectangles: tuple[Rectangle, ...], shape: tuple[int, int], way: Way | None = None) -> UploadPlan:
    """Return the cheapest way to upload rectangles of tiles, or the requested one.

    Args:
        rectangles: Disjoint, non-empty rectangles of tiles.
        shape: (rows, cols) of the grid.
        way: The way to take; None for the cheapest. "whole" is what a texture without dirty tiles does: everything is
            copied and gets new mipmaps.
    """
    if way == "whole":
        full_grid = (0, 0, *shape)
        return UploadPlan("whole", (Block(full_grid, tiles_of([full_grid])),), tiles_of(()))
    small = [rectangle for rectangle in rectangles if area(rectangle) < SMALL_TILES]
    large = [rectangle for rectangle in rectangles if area(rectangle) >= SMALL_TILES]
    box = box_around(rectangles)
    # what a tile costs in a strip, more than its mipmaps would alone
    parts_cost = sum(BLOCK_COST + area(rectangle) for rectangle in large) + 8 * sum(map(area, small))
    if way == "box" or (way is None and parts_cost > BLOCK_COST + area(box)):
        return UploadPlan("box", (Block(box, tiles_of(rectangles)),), tiles_of(()))
    blocks = tuple(Block(rectangle, tiles_of([rectangle])) for rectangle in large)
    return UploadPlan("parts", blocks, tiles_of(small))


def area(rectangle: Rectangle) -> int:
    """Return the number of its tiles."""
    row0, col0, row1, col1 = rectangle
    return (row1 - row0) * (col1 - col0)


def box_around(rectangles: Sequence[Rectangle]) -> Rectangle:
    """Return the smallest rectangle that holds all of them, of which there is at least one."""
    row0, col0, row1, col1 = zip(*rectangles, strict=True)
    return min(row0), min(col0), max(row1), max(col1)


def tiles_of(rectangles: Sequence[Rectangle]) -> npt.NDArray[np.intp]:
    """Return every tile of disjoint rectangles, one after another and row by row: int [n, 2] (row, col)."""
    if len(rectangles) == 1:
        ((row0, col0, row1, col1),) = rectangles
        return np.mgrid[row0:row1, col0:col1].reshape(2, -1).T
    tiles = [
        (row, col) for row0, col0, row1, col1 in rectangles for row in range(row0, row1) for col in range(col0, col1)
    ]
    return np.array(tiles, np.intp).reshape(-1, 2)


def cheaper(rectangles: tuple[Rectangle, ...], rectangle_cost: float) -> tuple[Rectangle, ...]:
    """Return the rectangles, or the box around them if that costs less; a rectangle's cost is in tiles, beside its
    own."""
    box = box_around(rectangles)
    separate_cost = sum(rectangle_cost + area(rectangle) for rectangle in rectangles)
    if separate_cost > rectangle_cost + area(box):
        return (box,)
    return rectangles


TEXEL_BYTES = 4
TILE_BYTES = TILE_PX * TILE_PX * TEXEL_BYTES
FOUR_TEXELS = 4 * TEXEL_BYTES
TILE_FOURS = TILE_PX // 4
"""Number of groups of four texels in a row of a tile."""

RECORD_BYTES = 16
"""A tile's record: row, column, base, stride, uint32 each."""

Records = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A block to copy into level 0, from `offset` bytes into the ring."""

    block: Block
    offset: int


@dataclass(frozen=True, slots=True)
class UploadLayout:
    """`blocks` and `strip` are records uint32 [n, 4]; the strip's begin at `strip_offset` bytes of the slot."""

    blocks: Records
    strip: Records
    strip_offset: int
    copies: list[BlockCopy]


def upload_bytes(plan: UploadPlan) -> int:
    """Return the bytes of the ring that a plan's texels and records take, at most."""
    tiles = len(plan.strip) + sum(len(block.dirty) for block in plan.blocks)
    texels = sum(block_bytes(block) for block in plan.blocks) + len(plan.strip) * TILE_BYTES
    return texels + tiles * RECORD_BYTES + 3 * align(1)


def block_bytes(block: Block) -> int:
    row0, col0, row1, col1 = block.rectangle
    return (row1 - row0) * (col1 - col0) * TILE_BYTES


def lay_out(level0: Plane, plan: UploadPlan, memory: Plane, offset: int, packer: TilePacker) -> UploadLayout:
    """Fill a slice of the ring with a plan's records and texels.

    Blocks' records come first, then the strip's at the next aligned place, then the texels.

    Args:
        level0: uint8 [rows * 32, cols * 32, 3].
        plan: The blocks and tiles to upload.
        memory: The slice, uint8 [nbytes].
        offset: Place of the slice in the ring, in bytes.
        packer: Copier of the tiles.
    """
    strip_offset = align(sum(len(block.dirty) for block in plan.blocks) * RECORD_BYTES)
    position = align(strip_offset + len(plan.strip) * RECORD_BYTES)
    blocks = [np.empty((0, 4), np.uint32)]
    copies = []
    for block in plan.blocks:
        row0, col0, row1, col1 = (edge * TILE_PX for edge in block.rectangle)
        height = row1 - row0
        width = col1 - col0
        texels = memory[position:][: height * width * TEXEL_BYTES].reshape(height, width, TEXEL_BYTES)
        cv2.cvtColor(level0[row0:row1, col0:col1], cv2.COLOR_RGB2RGBA, dst=texels)
        copies.append(BlockCopy(block, offset + position))
        blocks.append(_block_records(block, offset + position))
        position += block_bytes(block)
    count = len(plan.strip)
    target = memory[position : position + count * TILE_BYTES].reshape(count, TILE_PX, TILE_PX, TEXEL_BYTES)
    packer.pack(level0, plan.strip, target)
    strip_base = (offset + position) // FOUR_TEXELS + np.arange(count) * (TILE_BYTES // FOUR_TEXELS)
    strip_records = _records(plan.strip, strip_base, TILE_FOURS)
    layout = UploadLayout(np.concatenate(blocks), strip_records, strip_offset, copies)
    for records, start in ((layout.blocks, 0), (layout.strip, strip_offset)):
        memory[start : start + records.nbytes] = records.view(np.uint8).ravel()
    return layout


def _block_records(block: Block, offset: int) -> Records:
    row0, col0, _, col1 = block.rectangle
    stride = (col1 - col0) * TILE_FOURS
    rows, cols = block.dirty.T
    base = offset // FOUR_TEXELS + (rows - row0) * (TILE_PX * stride) + (cols - col0) * TILE_FOURS
    return _records(block.dirty, base, stride)


def _records(tiles: Tiles, base: npt.NDArray[np.intp], stride: int) -> Records:
    records = np.empty((len(tiles), 4), np.uint32)
    records[:, :2], records[:, 2], records[:, 3] = tiles, base, stride
    return records
