"""Frames of a prompt: read causally, or cached and placed in any slot, and the window of the newest.

Its keys are kept before their rotation and its values as they are: neither depends on the other frames of a window.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import functional as F

from arr_coc.errors import NonFiniteError
from arr_coc.ops.regions import region_mean
from arr_coc.qwen.decode import PrefixCache, PromptPart
from arr_coc.qwen.encoding import EncodedFrame, Packet
from arr_coc.qwen.options import WindowOptions
from arr_coc.qwen.qwenvl import KeyCapture, QwenVL, rotate, rotation
from arr_coc.qwen.vision_cache import Pixels
from arr_coc.types import FrameStamp, TileGrid, TokenPacket

Ids: TypeAlias = tuple[int, ...]


def same_picture(one: Packet, other: Packet) -> bool:
    """Return True if two packets show the same pixels in the same regions.

    A FramePacket's image may be overwritten once it has been answered, so it equals no other.
    """
    if not isinstance(one, TokenPacket) or not isinstance(other, TokenPacket):
        return False
    if (one.grid, one.overview) != (other.grid, other.overview):
        return False
    return np.array_equal(one.regions, other.regions) and same_pixels(one.pixels, other.pixels)


def same_pixels(one: Pixels, other: Pixels) -> bool:
    """Return True if pixels are equal; those on a device are compared there."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    first, second = (torch.as_tensor(pixels) for pixels in (one, other))
    return first.device == second.device and torch.equal(first, second)


class CausalPiece:
    """A frame, or its overview alone, as the cache knows it: `frame` encoded, its tokens at `visual` of the cache.

    Equal to another piece of its kind where the same picture is shown under the same heading.
    """

    def __init__(self, packet: Packet, opening: Ids) -> None:
        self.packet = packet
        self.opening = opening
        self.frame: EncodedFrame
        self.visual = slice(0, 0)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, CausalPiece) or self.opening != other.opening:
            return False
        return same_picture(self.packet, other.packet)

    __hash__ = None  # type: ignore[assignment]


class CausalOverview(CausalPiece):
    """The beginning of a frame: what introduces it, and its overview. The frame's own tokens go on at its position."""


class CausalFrame(CausalPiece):
    """A whole frame: its `overview`, where it has one, and the rest."""

    def __init__(self, packet: Packet, opening: Ids) -> None:
        super().__init__(packet, opening)
        self.overview: CausalOverview | None = None
        if isinstance(packet, TokenPacket) and packet.overview:
            self.overview = CausalOverview(packet.overview_part(), opening)

    @property
    def pieces(self) -> tuple[CausalPiece, ...]:
        """Its parts as the cache marks them, in order."""
        return (self,) if self.overview is None else (self.overview, self)


@dataclass(frozen=True, slots=True)
class FrameDelimiters:
    """The token ids around a frame: the prompt's beginning `head`, and the frame's own `opening` and `closing`."""

    head: Ids
    opening: Ids
    closing: Ids


@dataclass(frozen=True, slots=True, eq=False)
class CachedFrame:
    """One frame, read. Equal to itself only.

    `keys` (not rotated) and `values`: a tensor [1, heads, L, head_dim] for each layer, over heading, visual tokens and
    closing. `positions` float32 [3, L] count from the frame's own beginning, and `extent` is where text goes on.
    `visual`: where its visual tokens lie among the L. `embeds` [K, D], `regions` int64 [K, 3] (on `grid`) and
    `relevance` float32 [K] are theirs. `packet` is None for a whole frame, as its pixels may be overwritten.
    """

    stamp: FrameStamp
    wrapping: FrameDelimiters
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
        """Share of the context that it takes: tokens or positions, whichever are more."""
        return max(self.tokens, self.extent)

    @property
    def visual_tokens(self) -> int:
        return self.visual.stop - self.visual.start

    @property
    def segments(self) -> list[int]:
        """Numbers of its visual tokens that were encoded together."""
        overview = 0 if self.packet is None else self.packet.overview
        return [count for count in (overview, self.visual_tokens - overview) if count]

    @property
    def bytes(self) -> int:
        """Bytes that it keeps in memory."""
        pixels = 0 if self.packet is None else self.packet.pixels.nbytes
        return pixels + sum(rows.numel() * rows.element_size() for rows in (*self.keys, *self.values, self.embeds))

    def reads(self, packet: Packet, wrapping: FrameDelimiters) -> bool:
        """Return True if reading `packet` in `wrapping` would give this very frame again."""
        return self.wrapping == wrapping and self.packet is not None and same_picture(self.packet, packet)


@torch.inference_mode()
def prefill_frame(
    qwen: QwenVL, prefix: PrefixCache[Any], packet: Packet, frame: EncodedFrame, wrapping: FrameDelimiters
) -> CachedFrame:
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
    with KeyCapture(qwen) as catcher:
        qwen.language_model(**arguments, past_key_values=kv, use_cache=True)
    values = tuple(layer.values[..., begun.tokens :, :].clone() for layer in kv.layers)
    _check_finite(catcher.keys, values)
    return CachedFrame(
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
def insert_frames(qwen: QwenVL, cache: PrefixCache[Any], frames: Sequence[CachedFrame]) -> None:
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
    if isinstance(packet, TokenPacket):
        return torch.tensor(packet.relevance, dtype=torch.float32)
    return torch.from_numpy(region_mean(frame.regions[0].cpu().numpy(), packet.relevance))


def _check_finite(keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for name, layers in (("keys", keys), ("values", values)):
        for index, rows in enumerate(layers):
            if not rows.isfinite().all():
                raise NonFiniteError(f"the {name} of layer {index} hold NaN or Inf; try dtype float32 or bfloat16")


class FrameWindow:
    """Newest frames of a stream. Its contents depend on the frames that entered last, never on earlier questions."""

    def __init__(self, options: WindowOptions | None = None) -> None:
        self.options = options or WindowOptions()
        self._frames: deque[CachedFrame] = deque(maxlen=self.options.capacity)

    @property
    def frames(self) -> tuple[CachedFrame, ...]:
        """All that are kept, in the order in which they entered."""
        return tuple(self._frames)

    @property
    def newest(self) -> CachedFrame | None:
        return self._frames[-1] if self._frames else None

    @property
    def bytes(self) -> int:
        """Bytes that the frames keep in memory; the cache that a question is asked of holds those shown once more."""
        return sum(frame.bytes for frame in self._frames)

    def clear(self) -> None:
        """Forgets all frames."""
        self._frames.clear()

    def enter(self, frame: CachedFrame) -> None:
        """Takes in the newest frame; the oldest leaves where there is no room.

        The same frame in another form is replaced; what may not stand beside it is forgotten, as by `begin`.
        """
        self.begin(frame.wrapping.head, frame.stamp.epoch)
        if self.newest is not None and _same_frame(self.newest, frame):
            self._frames.pop()
        self._frames.append(frame)

    def begin(self, head: Ids, epoch: int | None = None) -> None:
        """Forgets frames that were read after another beginning of the prompt than `head`. Where a frame of `epoch`
        comes, also those from before a cut, unless they are to be kept."""
        any_epoch = epoch is None or self.options.on_cut == "keep"
        staying = [
            frame for frame in self._frames if frame.wrapping.head == head and (any_epoch or frame.stamp.epoch == epoch)
        ]
        self._frames = deque(staying, self.options.capacity)

    def pick(self, query: torch.Tensor, room_steps: float = math.inf) -> list[CachedFrame]:
        """The frames to show, in the order in which they entered: the newest, and those that suit the question best.

        `query` float32 [D]: the question's embeddings, pooled. Of frames that suit equally well, newer ones are taken.
        Beyond the newest, none is shown that would need more tokens or positions than `room_steps` together.
        """
        if not self._frames:
            return []
        *older, newest = self._frames
        crowded = len(self._frames) > self.options.frames
        scores = [suitability(frame, query) if crowded else 0.0 for frame in older]
        room_steps -= newest.steps
        picked: list[int] = []
        for index in sorted(range(len(older)), key=lambda index: (scores[index], index), reverse=True):
            if len(picked) + 1 < self.options.frames and older[index].steps <= room_steps:
                picked.append(index)
                room_steps -= older[index].steps
        return [*(older[index] for index in sorted(picked)), newest]


def suitability(frame: CachedFrame, query: torch.Tensor) -> float:
    """Score how well a frame suits a question, in [0, 1]: mean over its tokens of the allocation's relevance times
    the cosine
    of encoder embedding and question `query` [D], moved from [-1, 1] to [0, 1]."""
    embeds = frame.embeds.float()
    cosine = F.cosine_similarity(embeds, query.to(embeds.device)[None], dim=-1).cpu()
    return float((frame.relevance * (1 + cosine) / 2).mean())


def _same_frame(one: CachedFrame, other: CachedFrame) -> bool:
    return (one.stamp.epoch, one.stamp.frame_index) == (other.stamp.epoch, other.stamp.frame_index)
