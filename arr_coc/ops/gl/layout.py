"""Where the texels of a frame's uploads lie in a part of the ring, and what the kernel is told about each tile."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.gl.plan import Block, Tiles, UploadPlan
from arr_coc.ops.gl.ring import aligned
from arr_coc.ops.packing import TilePacker
from arr_coc.ops.planes import Plane
from arr_coc.types import TILE_PX

TEXEL_BYTES = 4
TILE_BYTES = TILE_PX * TILE_PX * TEXEL_BYTES
FOUR_TEXELS = 4 * TEXEL_BYTES
TILE_FOURS = TILE_PX // 4
"""How many times four texels a row of a tile has."""

RECORD_BYTES = 16
"""A tile's record: row, column, base, stride, uint32 each."""

Records = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Copy:
    """A block to copy into level 0, from `offset` bytes into the ring."""

    block: Block
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """`blocks` and `strip` are records uint32 [n, 4]; the strip's begin at `strip_offset` bytes of the slot."""

    blocks: Records
    strip: Records
    strip_offset: int
    copies: list[Copy]


def upload_bytes(plan: UploadPlan) -> int:
    """Bytes of the ring that a plan's texels and records take, at most."""
    tiles = len(plan.strip) + sum(len(block.dirty) for block in plan.blocks)
    texels = sum(block_bytes(block) for block in plan.blocks) + len(plan.strip) * TILE_BYTES
    return texels + tiles * RECORD_BYTES + 3 * aligned(1)


def block_bytes(block: Block) -> int:
    row0, col0, row1, col1 = block.rectangle
    return (row1 - row0) * (col1 - col0) * TILE_BYTES


def lay_out(level0: Plane, plan: UploadPlan, memory: Plane, offset: int, packer: TilePacker) -> Layout:
    """Fills `memory` uint8 [nbytes], which lies at `offset` bytes of the ring, from `level0` uint8 [rows * 32,
    cols * 32, 3].

    Blocks' records come first, then the strip's at the next aligned place, then the texels.
    """
    strip_offset = aligned(sum(len(block.dirty) for block in plan.blocks) * RECORD_BYTES)
    position = aligned(strip_offset + len(plan.strip) * RECORD_BYTES)
    blocks, copies = [np.empty((0, 4), np.uint32)], []
    for block in plan.blocks:
        _lay_block(level0, block, memory[position:])
        copies.append(Copy(block, offset + position))
        blocks.append(_block_records(block, offset + position))
        position += block_bytes(block)
    count = len(plan.strip)
    target = memory[position : position + count * TILE_BYTES].reshape(count, TILE_PX, TILE_PX, TEXEL_BYTES)
    packer.pack(level0, plan.strip, target)
    layout = Layout(np.concatenate(blocks), _strip_records(plan.strip, offset + position), strip_offset, copies)
    for records, start in ((layout.blocks, 0), (layout.strip, strip_offset)):
        memory[start : start + records.nbytes] = records.view(np.uint8).ravel()
    return layout


def _lay_block(level0: Plane, block: Block, memory: Plane) -> None:
    row0, col0, row1, col1 = (edge * TILE_PX for edge in block.rectangle)
    height, width = row1 - row0, col1 - col0
    target = memory[: height * width * TEXEL_BYTES].reshape(height, width, TEXEL_BYTES)
    cv2.cvtColor(level0[row0:row1, col0:col1], cv2.COLOR_RGB2RGBA, dst=target)


def _block_records(block: Block, offset: int) -> Records:
    row0, col0, _, col1 = block.rectangle
    stride = (col1 - col0) * TILE_FOURS
    rows, cols = block.dirty.T
    base = offset // FOUR_TEXELS + (rows - row0) * (TILE_PX * stride) + (cols - col0) * TILE_FOURS
    return _records(block.dirty, base, stride)


def _strip_records(tiles: Tiles, offset: int) -> Records:
    base = offset // FOUR_TEXELS + np.arange(len(tiles)) * (TILE_BYTES // FOUR_TEXELS)
    return _records(tiles, base, TILE_FOURS)


def _records(tiles: Tiles, base: npt.NDArray[np.intp], stride: int) -> Records:
    records = np.empty((len(tiles), 4), np.uint32)
    records[:, :2], records[:, 2], records[:, 3] = tiles, base, stride
    return records
