"""`VisualMemory`: a group of pictures in the cache, as one picture that is kept up to date.

The key frame is read as any picture is. What is new is read behind it, at its true place in the same picture, and what
that supersedes is removed from the cache. So the model sees one picture, in the layout that it was trained on; the
order of visual tokens does not matter to it, as their places are in their rotation. As long as nothing was superseded,
keys and values are those of one fresh prefill; those that stay when others leave were computed while these were there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.qwen.decode import CacheMark, PrefixCache, PromptPart, prefill
from arr_coc.qwen.encoding import EncodedFrame
from arr_coc.qwen.frame_window import same_picture
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import TokenPacket

Ids = tuple[int, ...]


@dataclass(slots=True, eq=False)
class VisualMemory:
    """State of a group of pictures in the cache; equal to itself only.

    `packets` were read, into the picture at M-RoPE `position`; its tokens lie in the rows from `first` on, in the order
    of `numbers` int64 [K] (of all that were ever appended, of which there are `count`), `regions` int64 [K, 3] and
    `embeds` [K, D].
    """

    first: int
    position: int
    embeds: torch.Tensor
    packets: list[TokenPacket] = field(default_factory=list)
    count: int = 0
    numbers: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    regions: torch.Tensor = field(default_factory=lambda: torch.zeros(0, 3, dtype=torch.int64))

    @property
    def rows(self) -> slice:
        """Rows of the cache that hold its tokens."""
        return slice(self.first, self.first + len(self.numbers))

    def precedes(self, packets: Sequence[TokenPacket]) -> bool:
        """Return True if packets begin with those that were read."""
        return len(self.packets) <= len(packets) and all(map(_same, self.packets, packets))

    def supersede(self, cache: PrefixCache[Any], numbers: npt.NDArray[np.integer]) -> None:
        """Remove tokens from the cache, which ends with this picture; those that are not there are ignored."""
        there = np.flatnonzero(np.isin(self.numbers, numbers))
        if not len(there):
            return
        holes, movers = (rows - self.first for rows in cache.remove(torch.from_numpy(there + self.first)))
        count = len(self.numbers) - len(there)
        self.numbers[holes.numpy()] = self.numbers[movers.numpy()]
        self.numbers = self.numbers[:count]
        self.regions, self.embeds = (
            rows.index_copy(0, holes.to(rows.device), rows[movers.to(rows.device)])[:count]
            for rows in (self.regions, self.embeds)
        )

    def append(self, packet: TokenPacket, frame: EncodedFrame | None) -> None:
        """Note that a packet's tokens, None for none, follow in the cache."""
        self.packets.append(packet)
        if frame is None:
            return
        added = frame.regions.shape[1]
        self.numbers = np.concatenate([self.numbers, np.arange(self.count, self.count + added)])
        self.count += added
        self.regions = torch.cat([self.regions, frame.regions[0].cpu()])
        self.embeds = torch.cat([self.embeds, frame.tokens.embeds[0].to(self.embeds)])


@dataclass(frozen=True, slots=True)
class GroupReading:
    """A group of pictures in the cache, but for `part`, which is to be prefilled next, with the question; then `marks`
    hold. `prefilled` tokens were read for it or are in the part, `appended` visual ones among them."""

    part: PromptPart
    marks: list[CacheMark[Any]]
    memory: VisualMemory
    prefilled: int
    appended: int


def _same(one: TokenPacket, other: TokenPacket) -> bool:
    if one is other:
        return True
    same = one.place == other.place and np.array_equal(one.superseded, other.superseded)
    return same and same_picture(one, other)


def read_group(
    qwen: QwenVL,
    cache: PrefixCache[Any],
    head: Ids,
    opening: Ids,
    packets: Sequence[TokenPacket],
    encode: Callable[[TokenPacket], EncodedFrame],
) -> GroupReading:
    """Bring the cache up to date with a group of pictures; all but the tokens of the newest packet are prefilled.

    `opening` stands before the first visual token. Of a group that the cache holds already, only what is new is read.
    """
    known = cache.marks[1].key if len(cache.marks) > 1 else None
    marks: list[CacheMark[Any]] = []
    if isinstance(known, VisualMemory) and known.precedes(packets):
        cache.rewind([head, known])
        memory, part = known, PromptPart(qwen, len(cache), known.position)
        del cache.marks[1:]
    else:
        cache.rewind([head])
        part = PromptPart(qwen, len(cache), cache.position)
        if not cache.marks:
            part.text(head)
            marks.append(CacheMark(head, part.tokens, part.position))
        part.text(opening)
        memory = VisualMemory(part.tokens, part.position, qwen.embed([]))
    before, prefilled = memory.count, 0
    for packet in packets[len(memory.packets) :]:
        if packet.is_empty:
            continue
        if memory.packets:
            if part.length:
                prefill(qwen, part, cache.kv)
                prefilled += part.length
            memory.supersede(cache, packet.superseded)
            part = PromptPart(qwen, len(cache), memory.position)
        frame = encode(packet) if len(packet.regions) else None
        if frame is not None:
            part.visual(frame)
        memory.append(packet, frame)
    marks.append(CacheMark(memory, part.tokens, memory.position))
    return GroupReading(part, marks, memory, prefilled + part.length, memory.count - before)
