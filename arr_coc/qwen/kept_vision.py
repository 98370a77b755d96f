"""Keys, values and outputs of the vision encoder that are kept for one epoch of a stream, and what they take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc.qwen.preprocess import PixelScale
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.slots import RegionSlots
from arr_coc.qwen.vision import VisualTokens
from arr_coc.qwen.windows import PATCHES
from arr_coc.types import TileGrid, TokenPacket

SPARE = 1.0
"""Slots for regions that left, as a share of those that the first frame showed."""

BYTES_A_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Belonging:
    """What kept keys are good for: where any of it differs, they are not."""

    tower: Any
    scale: PixelScale
    dtype: torch.dtype
    device: torch.device
    epoch: int
    grid: TileGrid
    tile_shape: tuple[int, ...]

    @classmethod
    def of(cls, qwen: QwenVL, packet: TokenPacket) -> Belonging:
        weight = qwen.tower.patch_embed.proj.weight
        return cls(
            tower=qwen.tower,
            scale=qwen.preprocessing.scale,
            dtype=weight.dtype,
            device=weight.device,
            epoch=packet.stamp.epoch,
            grid=packet.grid,
            tile_shape=packet.pixels.shape[1:],
        )


@dataclass(frozen=True, slots=True)
class RegionSize:
    """What is kept of one region: `layers` times a key and a value of `heads` * `head_dim` for each of its patches,
    `outputs` rows of `width` (the embedding and each deepstack level), and its pixels."""

    layers: int
    heads: int
    head_dim: int
    outputs: int
    width: int
    value_bytes: int
    pixel_bytes: int

    @classmethod
    def of(cls, qwen: QwenVL, belonging: Belonging) -> RegionSize:
        tower = belonging.tower
        attention = tower.blocks[0].attn
        return cls(
            layers=len(tower.blocks),
            heads=attention.num_heads,
            head_dim=attention.qkv.in_features // attention.num_heads,
            outputs=1 + len(getattr(tower, "deepstack_visual_indexes", ())),
            width=qwen.language_model.embed_tokens.embedding_dim,
            value_bytes=belonging.dtype.itemsize,
            pixel_bytes=math.prod(belonging.tile_shape),
        )

    @property
    def bytes(self) -> int:
        values = 2 * self.layers * PATCHES * self.heads * self.head_dim + self.outputs * self.width
        return values * self.value_bytes + self.pixel_bytes

    def slots_within(self, limit_mb: float, regions: int) -> int:
        """Slots for frames of about `regions` regions and for some that left; 0 where one frame exceeds the limit."""
        fitting = int(limit_mb * BYTES_A_MB) // self.bytes
        return min(fitting, math.ceil(regions * (1 + SPARE))) if fitting >= regions else 0


class KeptVision:
    """What is kept of the regions of one epoch, in a fixed number of slots.

    `keys_values` [layers, 2, slots, 4, heads, head_dim]; `outputs` [1 + deepstack, slots, D]: embeddings, then each
    deepstack level. `frames` have been encoded, `since_all` of them since the last that was encoded whole. `drift`: see
    `VisionReport`.
    """

    def __init__(self, belonging: Belonging, size: RegionSize, slots: int) -> None:
        self.belonging = belonging
        self.bytes = slots * size.bytes
        shape = (size.layers, 2, slots, PATCHES, size.heads, size.head_dim)
        self.keys_values = torch.empty(shape, dtype=belonging.dtype, device=belonging.device)
        outputs = (size.outputs, slots, size.width)
        self.outputs = torch.empty(outputs, dtype=belonging.dtype, device=belonging.device)
        self.slots = RegionSlots(slots, belonging.tile_shape)
        self.frames = 0
        self.since_all = 0
        self.drift: float | None = None

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Moves the contents of slots, all at once."""
        if not len(source):
            return
        for held, axis in ((self.keys_values, 2), (self.outputs, 1)):
            held.index_copy_(axis, target, held.index_select(axis, source))

    def put_keys(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Keeps one layer's key and value [1, 4R, heads, head_dim] of the regions in `slots` [R]."""
        for held, rows in zip(self.keys_values[layer], (key, value), strict=True):
            held.index_copy_(0, slots, rows[0].unflatten(0, (-1, PATCHES)))

    def keys(self, layer: int, regions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One layer's keys and values of the first slots, each [4 * regions, heads, head_dim], not copied."""
        key, value = self.keys_values[layer, :, :regions].flatten(1, 2)
        return key, value

    def put_outputs(self, slots: torch.Tensor, tokens: VisualTokens) -> None:
        """Keeps what came out for the regions in `slots` [R]."""
        self.outputs.index_copy_(1, slots, torch.cat([tokens.embeds, *tokens.deepstack]))

    def tokens(self, slots: torch.Tensor) -> VisualTokens:
        """What came out for the regions in `slots` [K], as a copy."""
        embeds, *deepstack = self.outputs.index_select(1, slots)[:, None]
        return VisualTokens(embeds, tuple(deepstack))
