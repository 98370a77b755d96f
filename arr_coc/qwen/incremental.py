"""The vision encoder over time: only regions that are new or changed are encoded, against kept keys of the others.

What is kept of an unchanged region was computed among neighbours as they were then, so it drifts from the truth while
they change; `arr_coc.qwen.refresh` says how it is brought back. Where everything is encoded, the result is that of
`encode_regions`, bit for bit.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch

from arr_coc.qwen.kept_vision import BYTES_A_MB, Belonging, KeptVision, RegionSize
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.refresh import Flags, IncrementalOptions, Ints, Regions, all_due, most_unsettled
from arr_coc.qwen.slots import Placement
from arr_coc.qwen.vision import (
    Attend,
    VisualTokens,
    attend_afresh,
    attend_all,
    check_finite,
    embed_rows,
    encode_regions,
    run_blocks,
    window_side_tiles,
    windowed,
)
from arr_coc.qwen.windows import KeptWindows
from arr_coc.types import TokenPacket

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VisionReport:
    """What encoding one frame incrementally took, and what is kept since.

    `regions` were shown; `encoded` of them ran through the encoder, `refreshed` of those although unchanged.
    `held_regions` are kept, shown or not, in `held_bytes` of keys, values, outputs and pixels. `drift`: by how much the
    embeddings of those refreshed were off, ‖new − old‖ / ‖new‖; None where nothing was refreshed.
    """

    regions: int = 0
    encoded: int = 0
    refreshed: int = 0
    held_regions: int = 0
    held_bytes: int = 0
    drift: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The regions `chosen` int64 [R] of a packet's K, whose keys lie in `slots` int64 [K].

    `chosen_slots` and `all_slots` are the slots of the chosen and of all regions, on the encoder's device.
    """

    packet: TokenPacket
    chosen: Ints
    slots: Ints
    chosen_slots: torch.Tensor
    all_slots: torch.Tensor

    @property
    def whole(self) -> bool:
        return len(self.chosen) == len(self.slots)


class IncrementalEncoder:
    """The vision encoder's memory for one stream. What it keeps belongs to one epoch, grid, model and dtype, and is
    dropped where one of them changes. Not for several threads at once."""

    def __init__(self, options: IncrementalOptions | None = None) -> None:
        self.options = options or IncrementalOptions()
        self._kept: KeptVision | None = None
        self._counts = (0, 0, 0)
        self._too_large = False

    def configure(self, options: IncrementalOptions) -> None:
        """Goes by other options from here on; what was kept by the old ones is dropped."""
        if options != self.options:
            self.options = options
            self.clear()

    def clear(self) -> None:
        """Drops what is kept."""
        self._kept = None

    @property
    def report(self) -> VisionReport:
        """About the frame that was encoded last. May wait for the device."""
        kept = self._kept
        if kept is None:
            return VisionReport(*self._counts)
        drift = None if kept.drift is None else float(kept.drift)
        return VisionReport(*self._counts, kept.slots.held, kept.bytes, drift)

    @torch.inference_mode()
    def encode(self, qwen: QwenVL, packet: TokenPacket) -> VisualTokens:
        """The visual tokens [1, K, D] of a packet's regions, in their order.

        A frame that would take more than `memory_mb` is encoded whole, and leaves what is kept as it is.
        Raises NonFiniteError for NaN or Inf in what was encoded; after any error nothing is kept.
        """
        kept = self._kept_for(qwen, packet)
        if kept is None:
            return self._without_keeping(qwen, packet)
        self._kept = None
        placement = kept.slots.place(packet.regions, packet.pixels, kept.frames)
        refreshed = self._refreshed(kept, placement, packet.regions)
        chosen = np.flatnonzero(placement.stale | refreshed)
        source, target, *slots = _upload(
            kept.belonging.device, placement.source, placement.target, placement.slots[chosen], placement.slots
        )
        kept.move(source, target)
        run = Run(packet, chosen, placement.slots, *slots)
        tokens = self._advanced(qwen, kept, run, np.flatnonzero(refreshed[chosen]))
        kept.slots.mark_encoded(placement.slots[chosen], kept.frames)
        kept.frames += 1
        kept.since_all = 0 if run.whole else kept.since_all + 1
        self._counts = (len(placement.slots), len(chosen), int(refreshed.sum()))
        self._kept = kept
        return tokens

    def _advanced(self, qwen: QwenVL, kept: KeptVision, run: Run, refreshed: Ints) -> VisualTokens:
        """Encodes what is chosen, and gives all tokens; `refreshed` are those of the chosen that were not stale."""
        kept.drift = None
        if not len(run.chosen):
            return kept.tokens(run.all_slots)
        fresh = _encode(qwen, kept, run)
        check_finite(fresh)
        if len(refreshed):
            (again,) = _upload(kept.belonging.device, refreshed)
            old = kept.tokens(run.chosen_slots[again]).embeds
            kept.drift = _difference(fresh.embeds[:, again], old)
        kept.put_outputs(run.chosen_slots, fresh)
        return fresh if run.whole else kept.tokens(run.all_slots)

    def _refreshed(self, kept: KeptVision, placement: Placement, regions: Regions) -> Flags:
        """Which of the regions that did not change are encoded all the same."""
        slots, stale, drift = placement.slots, placement.stale, None
        kept.slots.unsettle(regions[stale])
        if self.options.drift_limit is not None and kept.since_all and kept.drift is not None:
            drift = float(kept.drift)
        if all_due(self.options, stale, kept.since_all + 1, drift):
            return ~stale
        return most_unsettled(kept.slots.unsettled(slots), kept.slots.encoded(slots), stale, self.options.share)

    def _kept_for(self, qwen: QwenVL, packet: TokenPacket) -> KeptVision | None:
        """What is kept, if it suits the packet; else new room, or None where that would take too much."""
        belonging, regions, kept = Belonging.of(qwen, packet), len(packet.regions), self._kept
        suits = kept is not None and kept.belonging == belonging
        if kept is not None and suits and regions <= kept.slots.capacity:
            return kept
        size = RegionSize.of(qwen, belonging)
        slots = size.slots_within(self.options.memory_mb, regions)
        if slots or not suits:
            self._kept = None  # before room is made for more
        if not slots and not self._too_large:
            self._too_large = True
            log.warning(
                "keeping the keys of %d tokens takes %.1f MB, more than memory_mb = %g; such frames are encoded whole",
                *(regions, regions * size.bytes / BYTES_A_MB, self.options.memory_mb),
            )
        return KeptVision(belonging, size, slots) if slots else None

    def _without_keeping(self, qwen: QwenVL, packet: TokenPacket) -> VisualTokens:
        pixels, regions = _inputs(qwen, packet, np.arange(len(packet.regions)))
        tokens = encode_regions(qwen.tower, pixels, regions, packet.grid, qwen.preprocessing.scale)
        check_finite(tokens)
        self._counts = (len(packet.regions), len(packet.regions), 0)
        return tokens


def _encode(qwen: QwenVL, kept: KeptVision, run: Run) -> VisualTokens:
    """The chosen regions through the tower; their keys and values are kept."""
    pixels, regions = _inputs(qwen, run.packet, run.chosen)
    rows = embed_rows(qwen.tower, pixels, regions, run.packet.grid, qwen.preprocessing.scale)
    attend = attend_afresh(qwen.tower, regions) if run.whole else _attend_kept(qwen, kept, run)

    def remember(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        kept.put_keys(layer, run.chosen_slots, key, value)
        return attend(layer, query, key, value)

    return run_blocks(qwen.tower, rows, remember)


def _attend_kept(qwen: QwenVL, kept: KeptVision, run: Run) -> Attend:
    """The chosen rows among the kept keys of all regions that are shown, their own among them."""
    tower, side_tiles = qwen.tower, window_side_tiles(qwen.tower)
    windows = None
    if side_tiles is not None:
        regions, chosen, slots = map(torch.from_numpy, (run.packet.regions.astype(np.int64), run.chosen, run.slots))
        windows = KeptWindows.over(regions, side_tiles, chosen, slots).to(kept.belonging.device)

    def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys, values = kept.keys(layer, len(run.slots))
        if windows is not None and windowed(tower, layer):
            return windows.attend(query, keys, values)
        return attend_all(query, keys[None], values[None])

    return attend


def _inputs(qwen: QwenVL, packet: TokenPacket, chosen: Ints) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels [1, R, 3, S, S] and regions int64 [1, R, 3] of the chosen ones, on the encoder's device."""
    device = qwen.vision_device
    pixels, regions = packet.pixels[chosen], packet.regions[chosen].astype(np.int64)
    return torch.from_numpy(pixels).to(device)[None], torch.from_numpy(regions).to(device)[None]


def _upload(device: torch.device, *arrays: Ints) -> tuple[torch.Tensor, ...]:
    """Arrays of whole numbers on a device, in one transfer."""
    together = torch.from_numpy(np.concatenate(arrays)).to(device)
    return together.split([len(array) for array in arrays])


def _difference(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """‖new − old‖ / ‖new‖, a scalar on the device."""
    new = new.float()
    return (new - old.float()).norm() / new.norm().clamp(min=torch.finfo(new.dtype).tiny)
