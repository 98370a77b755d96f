"""Encoding of several packets in one pass: their regions one after another, without padding.

Each row of the encoder depends only on its own region, except in attention, which is computed within each packet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from arr_coc.errors import NonFiniteError
from arr_coc.qwen.encoding import EncodedFrame
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.vision import PATCHES, Attend, VisualTokens, attend_afresh, check_finite, embed_rows, run_blocks
from arr_coc.types import TokenPacket

CPU_REGIONS = 256
"""Regions in one pass on a CPU: fewer waste calls, more exceed a core's L2 cache. With the bundled model, four packets
of 63 regions take a fifth less time in one pass, eight an eighth."""

GPU_REGIONS = 4096


@torch.inference_mode()
def encode_packed(qwen: QwenVL, packets: Sequence[TokenPacket]) -> list[EncodedFrame | None]:
    """Encode packets without overviews as `encode_packet` does with `sparse`, several in one pass; in their order.

    The result is None for a packet that is better encoded alone, and for packets of a pass with NaN or Inf.
    """
    encoded: dict[int, EncodedFrame] = {}
    for group in _groups(qwen, packets):
        try:
            frames = _one_pass(qwen, [packets[index] for index in group])
        except NonFiniteError:
            continue
        encoded |= dict(zip(group, frames, strict=True))
    return [encoded.get(index) for index in range(len(packets))]


def _groups(qwen: QwenVL, packets: Sequence[TokenPacket]) -> Iterator[list[int]]:
    """Yield indices of packets to encode together, two or more, of one grid and within the limit of regions."""
    if qwen.vision_device.type == "cpu":
        most = CPU_REGIONS
    else:
        most = GPU_REGIONS
    for grid in dict.fromkeys(packet.grid for packet in packets):
        group: list[int] = []
        regions = 0
        for index in [index for index, packet in enumerate(packets) if packet.grid == grid]:
            count = len(packets[index].regions)
            if regions + count > most:
                if len(group) > 1:
                    yield group
                group = []
                regions = 0
            group.append(index)
            regions += count
        if len(group) > 1:
            yield group


def _one_pass(qwen: QwenVL, packets: Sequence[TokenPacket]) -> list[EncodedFrame]:
    device = qwen.vision_device
    grid = packets[0].grid
    regions = torch.from_numpy(np.concatenate([packet.regions for packet in packets]).astype(np.int64)).to(device)[None]
    pixels = _joined_pixels(packets, device)[None]
    counts = [len(packet.regions) for packet in packets]
    rows = embed_rows(qwen.tower, pixels, regions, grid, qwen.preprocessing.scale)
    tokens = run_blocks(qwen.tower, rows, _attend_by_packet(qwen, regions, counts))
    check_finite(tokens)
    embeds = tokens.embeds.split(counts, dim=1)
    deepstack = [level.split(counts, dim=1) for level in tokens.deepstack]
    own_regions = regions.split(counts, dim=1)
    return [
        EncodedFrame(VisualTokens(embeds[index], tuple(level[index] for level in deepstack)), own_regions[index], grid)
        for index in range(len(packets))
    ]


def _joined_pixels(packets: Sequence[TokenPacket], device: torch.device) -> torch.Tensor:
    """Join the pixels of all regions to [regions, 3, S, S]. Pixels of a message are read-only and must be copied, as
    torch has no read-only tensors."""
    on_host = [packet.pixels for packet in packets if isinstance(packet.pixels, np.ndarray)]
    if len(on_host) == len(packets):
        return torch.from_numpy(np.concatenate(on_host)).to(device)
    parts = [
        torch.tensor(rows) if isinstance(rows, np.ndarray) else rows for rows in (packet.pixels for packet in packets)
    ]
    return torch.cat([rows.to(device) for rows in parts])


def _attend_by_packet(qwen: QwenVL, regions: torch.Tensor, counts: Sequence[int]) -> Attend:
    """Return attention of each row to the rows of its packet, or of its window in it."""
    attends = [attend_afresh(qwen.tower, part) for part in regions.split(list(counts), dim=1)]
    patches = [count * PATCHES for count in counts]

    def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        parts = zip(*(rows.split(patches, dim=1) for rows in (query, key, value)), strict=True)
        return torch.cat(
            [attend_packet(layer, *part) for attend_packet, part in zip(attends, parts, strict=True)], dim=1
        )

    return attend
