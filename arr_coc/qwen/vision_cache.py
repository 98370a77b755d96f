"""Cache of incremental encoding: slots, keys and values, and the regions to refresh."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.errors import ShapeError
from arr_coc.qwen.families import TOWER_FAMILIES
from arr_coc.qwen.options import IncrementalOptions
from arr_coc.qwen.preprocess import PixelNormalisation
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.vision import PATCHES, VisualTokens, attention_dtype
from arr_coc.texture.regions import token_positions
from arr_coc.types import REGION_SHAPES, TileGrid, TokenPacket

Regions = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Pixels: TypeAlias = npt.NDArray[np.uint8] | torch.Tensor
"""Pixels of regions [K, 3, S, S], in host memory or on a device."""

Floats = npt.NDArray[np.float64]

MOST = 0.75
"""Share of stale regions above which the whole frame is encoded."""


def full_refresh_due(options: IncrementalOptions, stale: Flags, frames_since_all: int, drift: float | None) -> bool:
    """Return True if the whole frame is to be encoded.

    Args:
        options: Limits of frames and drift.
        stale: Regions that are encoded in any case, bool [K]. If they are most of the regions, the rest costs little
            and makes the result exact.
        frames_since_all: Frames since the last full encoding.
        drift: Drift of the cached embeddings, see `VisionStats`; None if it is not known.
    """
    if stale.mean() > MOST or (options.every_frames is not None and frames_since_all >= options.every_frames):
        return True
    return options.drift_limit is not None and drift is not None and drift > options.drift_limit


def neighbour_change(regions: Regions, changed_regions: Regions) -> Floats:
    """Return the amount of change around each of `regions` [K, 3]: float64 [K].

    Each of the regions `changed_regions` [S, 3] counts 1 / (1 + d²), d being its distance in tiles, between centres.
    """
    centres = token_positions(regions)
    changed_centres = token_positions(changed_regions)
    down, across = (centres[:, axis, None] - changed_centres[:, axis] for axis in (0, 1))
    return (1 / (1 + down**2 + across**2)).sum(axis=1)


def select_for_refresh(change: Floats, encoded_frames: Ints, stale: Flags, share: float) -> Flags:
    """Select the unchanged regions to encode again: bool [K].

    These are the regions with the most change around them since they were encoded, and among equals those encoded
    longest ago. On drawn scenes the error is a third below that of a round-robin refresh: a region attends to its
    neighbours most.

    Args:
        change: Change around each region since it was encoded, float64 [K].
        encoded_frames: Number of the frame in which each region was encoded, int64 [K].
        stale: Regions that are encoded in any case, bool [K].
        share: Share of all regions to select, rounded up.
    """
    selection = np.zeros(len(stale), bool)
    order = np.lexsort((encoded_frames, -change, stale))
    count = min(math.ceil(share * len(stale)), int((~stale).sum()))
    selection[order[:count]] = True
    return selection


EMPTY = -1
"""Name in an empty slot."""

NEVER = -1
"""Frame number of a slot that no frame has used."""

INDEX_BITS = 24
"""Bits of a region's name for its row and for its column."""


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """Slots of the regions of one frame.

    `slots` int64 [K]: each region's slot, a permutation of 0 to K - 1. `stale` bool [K]: regions whose keys do not
    belong to their current pixels. `source`, `target` int64 [M]: slots whose contents move, all at once, before any
    write.
    """

    slots: Ints
    stale: Flags
    source: Ints
    target: Ints


class RegionSlotTable:
    """Bounded table of regions and their last pixels.

    Attention runs over the first K slots in place, without a gather: regions that come or leave are moved instead.
    Regions that left stay while there is room, the most recently shown ones longest.
    """

    def __init__(self, capacity: int, tile_shape: tuple[int, ...], device: torch.device | None = None) -> None:
        """`tile_shape` is the shape of one region's pixels, which are on `device`, or in host memory if it is None."""
        self.pixels: Pixels = np.zeros((capacity, *tile_shape), np.uint8)
        if device is not None:
            self.pixels = torch.from_numpy(self.pixels).to(device)
        self._names: Ints = np.full(capacity, EMPTY, np.int64)
        self._shown_frames: Ints = np.full(capacity, NEVER, np.int64)
        self._encoded_frames: Ints = np.full(capacity, NEVER, np.int64)
        self._unsettled: Floats = np.zeros(capacity)

    @property
    def capacity(self) -> int:
        return len(self._names)

    @property
    def region_count(self) -> int:
        """Number of regions held, shown or not."""
        return int((self._names != EMPTY).sum())

    def place(self, regions: Regions, pixels: Pixels, frame: int) -> SlotAssignment:
        """Assign slots to the regions that a frame shows, and store their pixels.

        Pixels on a device are compared there; only one flag a region is copied to the host.

        Args:
            regions: int32 [K, 3] (shape, row, col), K up to `capacity`.
            pixels: Pixels of the regions, uint8 [K, 3, S, S].
            frame: Number of the frame.

        Raises:
            ShapeError: An invalid or duplicate region; the table then stays as it was.
        """
        count = len(regions)
        names = _names(regions)
        at = self._find(names)
        hits = np.flatnonzero(at != EMPTY)
        stale = np.ones(count, bool)
        stale[hits] = _differ(self.pixels, at[hits], pixels, hits)

        stays = (at != EMPTY) & (at < count)
        slots = at.copy()
        slots[~stays] = _free(at[stays], 0, count)
        source, target, keep = self._leaving(at[hits], count)
        comes = hits[~stays[hits]]
        source = np.concatenate([at[comes], source])
        target = np.concatenate([slots[comes], target])
        for column in (self._names, self._shown_frames, self._encoded_frames, self._unsettled):
            column[target] = column[source]
        _put(self.pixels, target, self.pixels, source)
        self._names[_free(np.concatenate([slots, keep]), 0, self.capacity)] = EMPTY
        self._names[slots] = names
        self._shown_frames[slots] = frame
        self._encoded_frames[slots[at == EMPTY]] = NEVER
        _put(self.pixels, slots[stale], pixels, np.flatnonzero(stale))
        return SlotAssignment(slots, stale, source, target)

    def encoded_frames(self, slots: Ints) -> Ints:
        """Return the number of the frame in which each of `slots` was last encoded."""
        return self._encoded_frames[slots]

    def unsettle(self, changed_regions: Regions) -> None:
        """Add the change that `changed_regions` [S, 3] cause to the totals of all regions held, shown or not."""
        slots = np.flatnonzero(self._names != EMPTY)
        self._unsettled[slots] += neighbour_change(_regions(self._names[slots]), changed_regions)

    def surrounding_change(self, slots: Ints) -> Floats:
        """Return the change around the regions in `slots` since they were encoded; see `neighbour_change`."""
        return self._unsettled[slots]

    def mark_encoded(self, slots: Ints, frame: int) -> None:
        """Record that `slots` were encoded with this frame."""
        self._encoded_frames[slots] = frame
        self._unsettled[slots] = 0

    def _find(self, names: Ints) -> Ints:
        """Return the slot of each region, EMPTY for regions that are not held."""
        order = np.argsort(self._names, kind="stable")
        place = np.minimum(np.searchsorted(self._names, names, sorter=order), self.capacity - 1)
        slots = order[place]
        return np.where(self._names[slots] == names, slots, EMPTY)

    def _leaving(self, shown_slots: Ints, count: int) -> tuple[Ints, Ints, Ints]:
        """Plan the slots of regions that are no longer shown: sources and targets of moves, and all slots they occupy.

        They get the slots from `count` on; `shown_slots` are those of regions that the frame shows.
        """
        absent = self._names != EMPTY
        absent[shown_slots] = False
        others = np.flatnonzero(absent)
        newest = others[np.argsort(-self._shown_frames[others], kind="stable")][: self.capacity - count]
        behind = newest[newest >= count]
        moving = newest[newest < count]
        room = _free(behind, count, self.capacity)[: len(moving)]
        return moving, room, np.concatenate([behind, room])


def _differ(first: Pixels, first_rows: Ints, second: Pixels, second_rows: Ints) -> Flags:
    """Compare the pixels `first[first_rows]` with `second[second_rows]`, both on one device: bool [n], True if
    different."""
    if isinstance(first, np.ndarray):
        return np.asarray((first[first_rows] != second[second_rows]).any(axis=(1, 2, 3)))
    cached = first.index_select(0, torch.from_numpy(first_rows).to(first.device))
    current = torch.as_tensor(second).index_select(0, torch.from_numpy(second_rows).to(first.device))
    return np.asarray((cached != current).flatten(1).any(dim=1).cpu())


def _put(to: Pixels, target: Ints, pixels: Pixels, source: Ints) -> None:
    """Copy `pixels[source]` to `to[target]`, both on one device."""
    if isinstance(to, np.ndarray):
        to[target] = pixels[source]
        return
    first = torch.from_numpy(target).to(to.device)
    second = torch.from_numpy(source).to(to.device)
    to.index_copy_(0, first, torch.as_tensor(pixels).index_select(0, second))


def _free(occupied_slots: Ints, first: int, stop: int) -> Ints:
    """Return the slots in [first, stop) that are not occupied."""
    free = np.ones(stop, bool)
    free[occupied_slots] = False
    return first + np.flatnonzero(free[first:])


def _names(regions: Regions) -> Ints:
    """Encode each region (shape, row, col) as one integer. Raises as `RegionSlotTable.place`."""
    shape, row, col = regions.astype(np.int64).T
    names = (shape << 2 * INDEX_BITS) | (row << INDEX_BITS) | col
    exists = regions.min() >= 0 and shape.max() < len(REGION_SHAPES) and not regions.max() >> INDEX_BITS
    if not exists or len(np.unique(names)) < len(names):
        raise ShapeError("a packet must name regions of the grid, each of them once")
    return names


def _regions(names: Ints) -> Regions:
    """Decode regions from the integers of `_names`."""
    last = (1 << INDEX_BITS) - 1
    return np.stack([names >> 2 * INDEX_BITS, names >> INDEX_BITS & last, names & last], axis=1).astype(np.int32)


SPARE = 1.0
"""Slots for regions that left, as a share of the regions of the first frame."""

BYTES_A_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Identity of cached keys, which are valid as long as all fields are equal."""

    tower: Any
    scale: PixelNormalisation
    dtype: torch.dtype
    device: torch.device
    epoch: int
    grid: TileGrid
    tile_shape: tuple[int, ...]
    pixels_on: torch.device | None

    @classmethod
    def of(cls, qwen: QwenVL, packet: TokenPacket) -> CacheKey:
        weight = qwen.tower.patch_embed.proj.weight
        return cls(
            tower=qwen.tower,
            scale=qwen.preprocessing.scale,
            dtype=weight.dtype,
            device=weight.device,
            epoch=packet.stamp.epoch,
            grid=packet.grid,
            tile_shape=tuple(packet.pixels.shape[1:]),
            pixels_on=packet.pixels.device if isinstance(packet.pixels, torch.Tensor) else None,
        )


@dataclass(frozen=True, slots=True)
class RegionSize:
    """Cache entry of one region: `layers` times a key and a value of `heads` * `head_dim` for each of its patches,
    `outputs` rows of `width` (the embedding and each deepstack level), and its pixels."""

    layers: int
    heads: int
    head_dim: int
    outputs: int
    width: int
    key_bytes: int
    output_bytes: int
    pixel_bytes: int

    @classmethod
    def of(cls, qwen: QwenVL, key: CacheKey) -> RegionSize:
        tower = key.tower
        attention = tower.blocks[0].attn
        return cls(
            layers=len(tower.blocks),
            heads=attention.num_heads,
            head_dim=attention.qkv.in_features // attention.num_heads,
            outputs=1
            + (len(tower.deepstack_visual_indexes) if TOWER_FAMILIES[tower.config.model_type].deepstack else 0),
            width=qwen.language_model.embed_tokens.embedding_dim,
            key_bytes=attention_dtype(tower).itemsize,
            output_bytes=key.dtype.itemsize,
            pixel_bytes=math.prod(key.tile_shape),
        )

    @property
    def bytes(self) -> int:
        keys = 2 * self.layers * PATCHES * self.heads * self.head_dim
        return keys * self.key_bytes + self.outputs * self.width * self.output_bytes + self.pixel_bytes

    def most_slots(self, limit_mb: float) -> int:
        """Return the number of slots that fit the limit."""
        return int(limit_mb * BYTES_A_MB) // self.bytes

    def slots_within(self, limit_mb: float, regions: int) -> int:
        """Return the slots for a frame of `regions` regions and some that left; 0 if one frame exceeds the limit."""
        capacity = self.most_slots(limit_mb)
        if capacity >= regions:
            return min(capacity, math.ceil(regions * (1 + SPARE)))
        return 0


class VisionKVCache:
    """Keys, values and outputs of the regions of one epoch, in a fixed number of slots.

    `keys_values` [layers, 2, slots, 4, heads, head_dim], in `attention_dtype`; `outputs` [1 + deepstack, slots, D]:
    embeddings, then each deepstack level. `frames` have been encoded, `since_all` of them since the last full encoding.
    `drift`: see `VisionStats`.
    """

    def __init__(self, key: CacheKey, size: RegionSize, slots: int) -> None:
        self.key = key
        self.bytes = slots * size.bytes
        shape = (size.layers, 2, slots, PATCHES, size.heads, size.head_dim)
        self.keys_values = torch.empty(shape, dtype=attention_dtype(key.tower), device=key.device)
        outputs = (size.outputs, slots, size.width)
        self.outputs = torch.empty(outputs, dtype=key.dtype, device=key.device)
        self.slots = RegionSlotTable(slots, key.tile_shape, key.pixels_on)
        self.frames = 0
        self.since_all = 0
        self.drift: float | None = None

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Move the contents of slots, all at once."""
        if not len(source):
            return
        for tensor, axis in ((self.keys_values, 2), (self.outputs, 1)):
            tensor.index_copy_(axis, target, tensor.index_select(axis, source))

    def put_keys(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store keys and values of one layer.

        Args:
            layer: Index of the layer.
            slots: Slots of the R regions, int64 [R].
            key: [1, 4R, heads, head_dim].
            value: [1, 4R, heads, head_dim].
        """
        for tensor, rows in zip(self.keys_values[layer], (key, value), strict=True):
            tensor.index_copy_(0, slots, rows[0].unflatten(0, (-1, PATCHES)))

    def keys(self, layer: int, regions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one layer's keys and values of the first slots, views [4 * regions, heads, head_dim]."""
        key, value = self.keys_values[layer, :, :regions].flatten(1, 2)
        return key, value

    def put_outputs(self, slots: torch.Tensor, tokens: VisualTokens) -> None:
        """Store the outputs of the regions in `slots` [R]."""
        self.outputs.index_copy_(1, slots, torch.cat([tokens.embeds, *tokens.deepstack]))

    def tokens(self, slots: torch.Tensor) -> VisualTokens:
        """Return a copy of the tokens of the regions in `slots` [K]."""
        embeds, *deepstack = self.outputs.index_select(1, slots)[:, None]
        return VisualTokens(embeds, tuple(deepstack))
