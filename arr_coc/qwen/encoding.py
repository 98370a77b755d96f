"""What each way of encoding makes of a packet: the visual tokens of one frame, and the regions that they show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.errors import OptionError
from arr_coc.qwen.incremental import IncrementalEncoder
from arr_coc.qwen.positions import grid_regions
from arr_coc.qwen.preprocess import to_tiles
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.vision import VisualTokens, check_finite, encode_regions
from arr_coc.types import NEEDS_TOKENS_ONLY, Encode, FramePacket, TileGrid, TokenPacket

Packet: TypeAlias = TokenPacket | FramePacket


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """`tokens` of batch 1 for `regions` int64 [1, K, 3] on `grid`."""

    tokens: VisualTokens
    regions: torch.Tensor
    grid: TileGrid


def token_count(packet: Packet, encode: Encode) -> int:
    """How many visual tokens `encode` makes of a packet."""
    chosen = isinstance(packet, TokenPacket) or encode == "prune"
    return len(packet.regions) if chosen else packet.grid.tiles


@torch.inference_mode()
def encode_packet(
    qwen: QwenVL, packet: Packet, encode: Encode, memory: IncrementalEncoder | None = None
) -> EncodedFrame:
    """Encodes one frame.

    Of a TokenPacket only the regions are encoded; with `incremental`, only those that `memory` does not know already.
    A FramePacket is encoded whole; then `prune` keeps its regions, `weighted` scales every token by its tile's
    relevance, and `full` (and `sparse` and `incremental`, whose allocation failed) keep all tiles as they are.
    Raises OptionError where the packet does not suit `encode`, NonFiniteError for NaN or Inf in what was encoded.
    """
    if isinstance(packet, TokenPacket):
        if encode not in NEEDS_TOKENS_ONLY:
            raise OptionError(f"encode={encode!r} needs the whole frame, got chosen tokens only")
        if encode == "incremental" and memory is not None:
            return EncodedFrame(*memory.encode(qwen, packet), packet.grid)
        frame = _encode(qwen, _tensor(packet.pixels), _tensor(packet.regions).long(), packet.grid)
    else:
        tiles = to_tiles(_tensor(packet.image), packet.image.shape[0] // packet.grid.rows)
        frame = _encode(qwen, tiles, grid_regions(packet.grid), packet.grid)
        if encode == "prune":
            frame = pooled(frame, _tensor(packet.regions).long())
        elif encode == "weighted":
            scale = _tensor(packet.relevance).flatten()[None, :, None].to(frame.tokens.embeds)
            frame = EncodedFrame(frame.tokens.map(lambda rows: rows * scale), frame.regions, frame.grid)
    check_finite(frame.tokens)
    return frame


def pooled(frame: EncodedFrame, regions: torch.Tensor) -> EncodedFrame:
    """The given regions [K, 3] of a frame encoded at level 0: each the mean over its tiles, exact for a single tile."""
    regions = regions.to(frame.regions.device)
    tile_row, tile_col = frame.regions[0, :, 1], frame.regions[0, :, 2]
    level, row, col = (column[:, None] for column in regions.unbind(1))
    inside = ((tile_row >> level) == row) & ((tile_col >> level) == col)
    share = inside.float() / inside.sum(dim=1, keepdim=True).clamp(min=1)
    tokens = frame.tokens.map(lambda rows: (share @ rows.float()).to(rows.dtype))
    return EncodedFrame(tokens, regions[None], frame.grid)


def _encode(qwen: QwenVL, pixels: torch.Tensor, regions: torch.Tensor, grid: TileGrid) -> EncodedFrame:
    device = qwen.vision_device
    pixels, regions = pixels.to(device)[None], regions.to(device)[None]
    return EncodedFrame(encode_regions(qwen.tower, pixels, regions, grid, qwen.preprocessing.scale), regions, grid)


def _tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
    """A tensor of the array; a copy where it is read-only, as torch has no read-only tensors."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
