"""Encoding of packets to visual tokens: full, prune, sparse, weighted, incremental.

Cached keys and values of an unchanged region were computed with its earlier neighbours, so they drift from a full
encoding as the neighbours change; `arr_coc.qwen.vision_cache` describes how they are refreshed. If all regions are
encoded, the result equals that of `encode_regions` bit for bit.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.errors import OptionError, counted
from arr_coc.qwen.onednn import attend_all
from arr_coc.qwen.options import IncrementalOptions
from arr_coc.qwen.preprocess import grid_regions, to_tiles
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.vision import (
    Attend,
    CachedAttentionWindows,
    VisualTokens,
    attend_afresh,
    block_steps,
    check_finite,
    embed_rows,
    encode_regions,
    is_window_layer,
    run_blocks,
    window_side_tiles,
)
from arr_coc.qwen.vision_cache import (
    BYTES_A_MB,
    CacheKey,
    Ints,
    Regions,
    RegionSize,
    SlotAssignment,
    VisionKVCache,
    full_refresh_due,
    select_for_refresh,
)
from arr_coc.texture.regions import region_scales
from arr_coc.types import NEEDS_TOKENS_ONLY, Encode, FramePacket, FrameStamp, Steps, TileGrid, TokenPacket

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VisionStats:
    """Cost of encoding one frame incrementally, and size of the cache afterwards.

    `regions` were shown; `encoded` of them ran through the encoder, `refreshed` of those although unchanged.
    `held_regions` are cached, shown or not, in `held_bytes` of keys, values, outputs and pixels. `drift`: relative
    error of the cached embeddings of refreshed regions, ‖new − old‖ / ‖new‖; None if no region was refreshed.
    """

    regions: int = 0
    encoded: int = 0
    refreshed: int = 0
    held_regions: int = 0
    held_bytes: int = 0
    drift: float | None = None

    def __add__(self, other: VisionStats) -> VisionStats:
        drifts = [drift for drift in (self.drift, other.drift) if drift is not None]
        return VisionStats(
            self.regions + other.regions,
            self.encoded + other.encoded,
            self.refreshed + other.refreshed,
            self.held_regions + other.held_regions,
            self.held_bytes + other.held_bytes,
            max(drifts, default=None),
        )


@dataclass(frozen=True, slots=True)
class RunIndices:
    """Indices of one run on the encoder's device, int64.

    `regions` [K, 3] lie in `slots` [K]; `selection` [R] are the indices of those to encode, `refreshed` [A] the indices
    in it of those that had not changed.
    `source` and `target` [M] are those of `SlotAssignment`.
    """

    regions: torch.Tensor
    slots: torch.Tensor
    selection: torch.Tensor
    refreshed: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor


@dataclass(frozen=True, slots=True)
class EncodeRun:
    """One run of the encoder: the `selection` int64 [R] of a packet's K regions, whose keys lie in `slots` int64 [K];
    `on` the device likewise."""

    packet: TokenPacket
    selection: Ints
    slots: Ints
    on: RunIndices

    @property
    def is_full(self) -> bool:
        return len(self.selection) == len(self.slots)


class IncrementalEncoder:
    """Incremental vision encoder for one stream. Its cache belongs to one epoch, grid, model and dtype, and is dropped
    when one of them changes. Overviews have a separate cache of the same kind within the same memory limit. Not
    thread-safe."""

    def __init__(self, options: IncrementalOptions | None = None) -> None:
        self.options = options or IncrementalOptions()
        self._cache: VisionKVCache | None = None
        self._counts = (0, 0, 0)
        self._too_large = False
        self._overview: IncrementalEncoder | None = None
        self._stamp: FrameStamp | None = None

    def configure(self, options: IncrementalOptions) -> None:
        """Set the options; if they changed, drop the cache."""
        if options != self.options:
            self.options = options
            self.clear()

    def clear(self) -> None:
        """Drop the cache."""
        self._cache = None
        self._overview = None

    @property
    def report(self) -> VisionStats:
        """Statistics of the last encoded frame, with its overview."""
        cache = self._cache
        overview = self._overview
        stats = VisionStats(*self._counts)
        if cache is not None:
            stats = VisionStats(*self._counts, cache.slots.region_count, cache.bytes, cache.drift)
        if overview is None:
            return stats
        return stats + overview.report

    @torch.inference_mode()
    def encode(self, qwen: QwenVL, packet: TokenPacket) -> tuple[VisualTokens, torch.Tensor]:
        """Return the visual tokens [1, K, D] of a packet's regions, in their order, and these regions int64 [1, K, 3].

        The packet holds chosen regions or an overview, not both.
        A frame that needs more than `memory_mb` is encoded whole, and the cache stays as it is.
        Raises NonFiniteError for NaN or Inf in the tokens, and ShapeError for invalid or duplicate regions; after any
        error the cache is empty.
        """
        self._begin_frame(packet.stamp)
        if packet.overview:
            self._overview = self._overview or IncrementalEncoder(self.options)
            return self._overview.encode(qwen, replace(packet, overview=0))
        cache = self._cache_for(qwen, packet)
        if cache is None:
            return self._encode_uncached(qwen, packet)
        self._cache = None
        placement = cache.slots.place(packet.regions, packet.pixels, cache.frames)
        slots = placement.slots
        stale = placement.stale
        cache.slots.unsettle(packet.regions[stale])
        drift = cache.drift if cache.since_all else None
        if full_refresh_due(self.options, stale, cache.since_all + 1, drift):
            refreshed = ~stale
        else:
            refreshed = select_for_refresh(
                cache.slots.surrounding_change(slots), cache.slots.encoded_frames(slots), stale, self.options.share
            )
        selection = np.flatnonzero(stale | refreshed)
        numbers = _upload(cache.key.device, packet.regions, placement, selection, np.flatnonzero(refreshed[selection]))
        run = EncodeRun(packet, selection, slots, numbers)
        tokens = _advance(qwen, cache, run)
        cache.slots.mark_encoded(placement.slots[selection], cache.frames)
        cache.frames += 1
        cache.since_all = 0 if run.is_full else cache.since_all + 1
        self._counts = (len(placement.slots), len(selection), int(refreshed.sum()))
        self._cache = cache
        return tokens, numbers.regions[None]

    def _begin_frame(self, stamp: FrameStamp) -> None:
        """Reset the counts of `report` for a new frame."""
        if stamp != self._stamp:
            self._stamp = stamp
            self._counts = (0, 0, 0)
            if self._overview is not None:
                self._overview._begin_frame(stamp)

    def _cache_for(self, qwen: QwenVL, packet: TokenPacket) -> VisionKVCache | None:
        """Return a cache for the packet, a new one if the current one does not match; None if it would be too large."""
        key = CacheKey.of(qwen, packet)
        regions = len(packet.regions)
        cache = self._cache
        suits = cache is not None and cache.key == key
        if cache is not None and suits and regions <= cache.slots.capacity:
            return cache
        size = RegionSize.of(qwen, key)
        # the overview's cache counts towards the limit
        if self._overview is not None:
            held_mb = self._overview.report.held_bytes / BYTES_A_MB
        else:
            held_mb = 0.0
        slots = size.slots_within(max(self.options.memory_mb - held_mb, 0.0), regions)
        if slots or not suits:
            self._cache = None  # freed before the new cache is allocated
        if not slots and not self._too_large:
            self._too_large = True
            log.warning(
                "caching the keys of %s takes %.1f MB, more than memory_mb = %g; such frames are encoded whole",
                *(counted(regions, "token"), regions * size.bytes / BYTES_A_MB, self.options.memory_mb),
            )
        return VisionKVCache(key, size, slots) if slots else None

    def _encode_uncached(self, qwen: QwenVL, packet: TokenPacket) -> tuple[VisualTokens, torch.Tensor]:
        count = len(packet.regions)
        regions = torch.from_numpy(packet.regions.astype(np.int64)).to(qwen.vision_device)[None]
        pixels = _pixels(qwen, packet, np.arange(count))
        tokens = encode_regions(qwen.tower, pixels, regions, packet.grid, qwen.preprocessing.scale)
        check_finite(tokens)
        self._counts = (count, count, 0)
        return tokens, regions


def _advance(qwen: QwenVL, cache: VisionKVCache, run: EncodeRun) -> VisualTokens:
    """Encode the selected regions, cache their outputs, and return the tokens of all regions."""
    on = run.on
    cache.drift = None
    if not len(run.selection):
        cache.move(on.source, on.target)
        return cache.tokens(on.slots)
    fresh = _encode_run(qwen, cache, run)
    slots = on.slots[on.selection]
    drift = []
    if len(on.refreshed):
        new = fresh.embeds[0, on.refreshed].float()
        distance = (new - cache.outputs[0, slots[on.refreshed]].float()).norm()
        drift = [distance / new.norm().clamp(min=torch.finfo(new.dtype).tiny)]
    cache.drift = next(iter(check_finite(fresh, *drift)), None)
    cache.put_outputs(slots, fresh)
    return fresh if run.is_full else cache.tokens(on.slots)


def _encode_run(qwen: QwenVL, cache: VisionKVCache, run: EncodeRun) -> VisualTokens:
    """Run the selected regions through the tower and cache their keys and values. Uploads to the device come first."""
    tower = qwen.tower
    on = run.on
    pixels = _pixels(qwen, run.packet, run.selection)
    regions = on.regions[on.selection][None]
    if run.is_full:
        attend = attend_afresh(tower, regions)
    else:
        attend = _attend_cached(qwen, cache, run)
    cache.move(on.source, on.target)
    rows = embed_rows(tower, pixels, regions, run.packet.grid, qwen.preprocessing.scale)
    slots = on.slots[on.selection]

    def remember(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        cache.put_keys(layer, slots, key, value)
        return attend(layer, query, key, value)

    return run_blocks(tower, rows, remember)


def _attend_cached(qwen: QwenVL, cache: VisionKVCache, run: EncodeRun) -> Attend:
    """Return attention of the selected rows to the cached keys of all shown regions, including their own."""
    tower = qwen.tower
    side_tiles = window_side_tiles(qwen.tower)
    windows = None
    if side_tiles is not None:
        regions, selection, slots = map(
            torch.from_numpy, (run.packet.regions.astype(np.int64), run.selection, run.slots)
        )
        windows = CachedAttentionWindows.over(regions, side_tiles, selection, slots).to(cache.key.device)

    def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys, values = cache.keys(layer, len(run.slots))
        if windows is not None and is_window_layer(tower, layer):
            return windows.attend(query, keys, values)
        return attend_all(query, keys[None], values[None])

    return attend


def _pixels(qwen: QwenVL, packet: TokenPacket, selection: Ints) -> torch.Tensor:
    """Return the pixels [1, R, 3, S, S] of the selected regions, on the encoder's device."""
    if isinstance(packet.pixels, np.ndarray):
        return torch.from_numpy(packet.pixels[selection]).to(qwen.vision_device)[None]
    pixels = packet.pixels
    if len(selection) < len(pixels):
        pixels = pixels[torch.from_numpy(selection).to(pixels.device)]
    return pixels.to(qwen.vision_device)[None]


def _upload(
    device: torch.device, regions: Regions, placement: SlotAssignment, selection: Ints, refreshed: Ints
) -> RunIndices:
    """Upload the indices of a run in one transfer."""
    parts = (regions.ravel(), placement.slots, selection, refreshed, placement.source, placement.target)
    indices = torch.from_numpy(np.concatenate(parts, dtype=np.int64)).to(device)
    flat, *numbers = indices.split([part.size for part in parts])
    return RunIndices(flat.view(-1, 3), *numbers)


Packet: TypeAlias = TokenPacket | FramePacket


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """`tokens` of batch 1 for `regions` int64 [1, K, 3] on `grid`."""

    tokens: VisualTokens
    regions: torch.Tensor
    grid: TileGrid

    def followed_by(self, other: EncodedFrame) -> EncodedFrame:
        """Return these tokens followed by those of another part of the same frame."""
        deepstack = zip(self.tokens.deepstack, other.tokens.deepstack, strict=True)
        tokens = VisualTokens(
            torch.cat([self.tokens.embeds, other.tokens.embeds], dim=1),
            tuple(torch.cat(rows, dim=1) for rows in deepstack),
        )
        return EncodedFrame(tokens, torch.cat([self.regions, other.regions], dim=1), self.grid)


def token_count(packet: Packet, encode: Encode) -> int:
    """Return the number of visual tokens of a packet under `encode`."""
    if isinstance(packet, TokenPacket):
        return len(packet.regions)
    if encode == "prune":
        return len(packet.regions)
    return packet.grid.tiles


def segment_counts(packet: Packet, encode: Encode) -> list[int]:
    """Return how many visual tokens of a packet are encoded together, for each of its parts."""
    if isinstance(packet, TokenPacket):
        overview = packet.overview
    else:
        overview = 0
    return [count for count in (overview, token_count(packet, encode) - overview) if count]


@torch.inference_mode()
def encode_packet(
    qwen: QwenVL, packet: Packet, encode: Encode, memory: IncrementalEncoder | None = None
) -> EncodedFrame:
    """Encode one frame.

    Only the regions of a TokenPacket are encoded. Its overview and its chosen regions are encoded separately, so that
    neither depends on the other; an overview alone is valid for every `encode`.
    A FramePacket is encoded whole; then `prune` keeps its regions, `weighted` scales every token by its tile's
    relevance, and `full` (and `sparse` and `incremental`, if allocation failed) keep all tiles as they are.

    Args:
        qwen: The model.
        packet: The frame, or its chosen regions.
        encode: Kind of encoding.
        memory: Encoder of the packet's stream. With `incremental`, only regions that it has not cached are encoded.

    Raises:
        OptionError: The packet does not match `encode`.
        NonFiniteError: NaN or Inf in the tokens.
    """
    if isinstance(packet, TokenPacket):
        if encode not in NEEDS_TOKENS_ONLY and not packet.is_glance:
            raise OptionError(f"encode={encode!r} needs the whole frame, got chosen tokens only")
        if 0 < packet.overview < len(packet.regions):
            overview = encode_packet(qwen, packet.overview_part(), encode, memory)
            return overview.followed_by(encode_packet(qwen, packet.chosen_part(), encode, memory))
        if encode == "incremental" and memory is not None:
            return EncodedFrame(*memory.encode(qwen, packet), packet.grid)
        frame = _encode(qwen, _tensor(packet.pixels), _tensor(packet.regions).long(), packet.grid)
    else:
        tiles = to_tiles(_tensor(packet.image), packet.image.shape[0] // packet.grid.rows)
        frame = _encode(qwen, tiles, grid_regions(packet.grid), packet.grid)
        if encode == "prune":
            frame = pool_regions(frame, _tensor(packet.regions).long())
        elif encode == "weighted":
            scale = _tensor(packet.relevance).flatten()[None, :, None].to(frame.tokens.embeds)
            frame = EncodedFrame(frame.tokens.map(lambda rows: rows * scale), frame.regions, frame.grid)
    check_finite(frame.tokens)
    return frame


@torch.inference_mode()
def encode_steps(qwen: QwenVL, packet: TokenPacket) -> Steps[EncodedFrame]:
    """Encode the regions of a packet without an overview as `encode_packet` does with `sparse`, in steps.

    Raises NonFiniteError for NaN or Inf in the tokens.
    """
    tower = qwen.tower
    tokens = qwen.step_tokens
    pixels = _tensor(packet.pixels).to(qwen.vision_device)[None]
    regions = _tensor(packet.regions).long().to(qwen.vision_device)[None]
    parts = []
    for some_pixels, some_regions in zip(pixels.split(tokens, dim=1), regions.split(tokens, dim=1), strict=True):
        parts.append(embed_rows(tower, some_pixels, some_regions, packet.grid, qwen.preprocessing.scale))
        yield
    encoded = yield from block_steps(tower, parts, attend_afresh(tower, regions))
    check_finite(encoded)
    return EncodedFrame(encoded, regions, packet.grid)


def pool_regions(frame: EncodedFrame, regions: torch.Tensor) -> EncodedFrame:
    """Pool a frame encoded at level 0 to the given regions [K, 3]: the mean over the tiles of each."""
    regions = regions.to(frame.regions.device)
    tiles = frame.regions[0, :, 1:]
    scales = region_scales(regions)
    members = ((tiles >> scales[:, None]) == regions[:, None, 1:]).all(dim=-1)
    share = members.float() / members.sum(dim=1, keepdim=True).clamp(min=1)
    tokens = frame.tokens.map(lambda rows: (share @ rows.float()).to(rows.dtype))
    return EncodedFrame(tokens, regions[None], frame.grid)


def _encode(qwen: QwenVL, pixels: torch.Tensor, regions: torch.Tensor, grid: TileGrid) -> EncodedFrame:
    device = qwen.vision_device
    pixels = pixels.to(device)[None]
    regions = regions.to(device)[None]
    return EncodedFrame(encode_regions(qwen.tower, pixels, regions, grid, qwen.preprocessing.scale), regions, grid)


def _tensor(array: npt.NDArray[Any] | torch.Tensor) -> torch.Tensor:
    """Return the array as a tensor; a read-only array is copied, as torch has no read-only tensors."""
    if isinstance(array, torch.Tensor):
        return array
    return torch.from_numpy(array if array.flags.writeable else array.copy())
