"""A frame as the language model reads it after the prompt's beginning alone, kept so that it can stand in any slot.

Its keys are kept before their rotation and its values as they are: neither depends on the other frames of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc.errors import NonFiniteError
from arr_coc.qwen.cache import PrefixCache
from arr_coc.qwen.decode import PromptPart
from arr_coc.qwen.encoding import EncodedFrame, Packet
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.rotation import KeyCatcher, rotate, rotation
from arr_coc.qwen.shown_frame import Ids, same_picture
from arr_coc.types import FrameStamp, TileGrid, TokenPacket


@dataclass(frozen=True, slots=True)
class Wrapping:
    """The token ids around a frame: the prompt's beginning `head`, and the frame's own `opening` and `closing`."""

    head: Ids
    opening: Ids
    closing: Ids


@dataclass(frozen=True, slots=True, eq=False)
class KeptFrame:
    """One frame, read. Equal to itself only.

    `keys` (not rotated) and `values`: a tensor [1, heads, L, head_dim] for each layer, over heading, visual tokens and
    closing. `positions` float32 [3, L] count from the frame's own beginning, and `extent` is where text goes on.
    `visual`: where its visual tokens lie among the L. `embeds` [K, D], `regions` int64 [K, 3] (on `grid`) and
    `relevance` float32 [K] are theirs. `packet` is None for a whole frame, as its pixels may be overwritten.
    """

    stamp: FrameStamp
    wrapping: Wrapping
    packet: TokenPacket | None
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    positions: torch.Tensor
    extent: int
    visual: slice
    embeds: torch.Tensor
    regions: torch.Tensor
    relevance: torch.Tensor
    grid: TileGrid

    @property
    def tokens(self) -> int:
        """All of its tokens, L."""
        return self.positions.shape[1]

    @property
    def steps(self) -> int:
        """What it takes of the context: tokens or positions, whichever are more."""
        return max(self.tokens, self.extent)

    @property
    def visual_tokens(self) -> int:
        return self.visual.stop - self.visual.start

    @property
    def bytes(self) -> int:
        """What it keeps in memory."""
        pixels = 0 if self.packet is None else self.packet.pixels.nbytes
        return pixels + sum(rows.numel() * rows.element_size() for rows in (*self.keys, *self.values, self.embeds))

    def reads(self, packet: Packet, wrapping: Wrapping) -> bool:
        """Whether reading `packet` in `wrapping` would give this very frame again."""
        return self.wrapping == wrapping and self.packet is not None and same_picture(self.packet, packet)


@torch.inference_mode()
def read_apart(
    qwen: QwenVL, prefix: PrefixCache[Any], packet: Packet, frame: EncodedFrame, wrapping: Wrapping
) -> KeptFrame:
    """Reads an encoded frame after the first piece of `prefix`, which is `wrapping.head`, and nothing else.

    Raises NonFiniteError where its keys or values hold NaN or Inf, so that none can be kept.
    """
    begun = prefix.marks[0]
    part = PromptPart(qwen, 0, begun.position)
    part.text(wrapping.opening)
    visual = part.frame(frame)
    part.text(wrapping.closing)
    arguments = part.inputs()
    kv = prefix.beginning()
    with KeyCatcher(qwen) as catcher:
        qwen.language_model(**arguments, past_key_values=kv, use_cache=True)
    values = tuple(layer.values[..., begun.tokens :, :].clone() for layer in kv.layers)
    _check_finite(catcher.keys, values)
    return KeptFrame(
        stamp=packet.stamp,
        wrapping=wrapping,
        packet=packet if isinstance(packet, TokenPacket) else None,
        keys=tuple(catcher.keys),
        values=values,
        positions=arguments["position_ids"][:, 0] - begun.position,
        extent=part.position - begun.position,
        visual=visual,
        embeds=frame.tokens.embeds[0],
        regions=frame.regions[0],
        relevance=_relevance(packet, frame),
        grid=frame.grid,
    )


@torch.inference_mode()
def lay(qwen: QwenVL, cache: PrefixCache[Any], frames: Sequence[KeptFrame]) -> None:
    """Adds frames to the cache, in this order, each rotated into the slot that follows, and marks their ends.

    Costs one rotation a key; nothing goes through the model.
    """
    if not frames:
        return
    positions, tokens, position = [], len(cache), cache.position
    for frame in frames:
        positions.append(frame.positions + position)
        tokens, position = tokens + frame.tokens, position + frame.extent
        cache.mark(frame, tokens, position)
    cos, sin = rotation(qwen, torch.cat(positions, dim=1))
    for layer in range(len(frames[0].keys)):
        keys = rotate(torch.cat([frame.keys[layer] for frame in frames], dim=-2), cos, sin)
        cache.kv.update(keys, torch.cat([frame.values[layer] for frame in frames], dim=-2), layer)


def _relevance(packet: Packet, frame: EncodedFrame) -> torch.Tensor:
    """The allocation's relevance of each token; of a whole frame's region, the mean over its tiles."""
    relevance = torch.tensor(packet.relevance, dtype=torch.float32)
    if isinstance(packet, TokenPacket):
        return relevance
    means = []
    for level, row, col in frame.regions[0].tolist():
        side = 1 << level
        means.append(relevance[row * side : (row + 1) * side, col * side : (col + 1) * side].mean())
    return torch.stack(means)


def _check_finite(keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for name, layers in (("keys", keys), ("values", values)):
        for index, rows in enumerate(layers):
            if not rows.isfinite().all():
                raise NonFiniteError(f"the {name} of layer {index} hold NaN or Inf; try dtype float32 or bfloat16")
