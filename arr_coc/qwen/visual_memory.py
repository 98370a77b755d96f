"""`VisualMemory`: a group of pictures in the cache, as one picture that is kept up to date, or as its newest frames.

A picture's key frame is prefilled as any picture is. Later tokens are appended at their true positions in the same
picture, and the tokens that they supersede are removed from the cache. So the model sees one picture, in the layout
that it was trained on; the order of visual tokens does not matter, as their rotation holds their positions. With
several frames, each is prefilled under its time after those before it, as Qwen3-VL reads a video, and the oldest is
removed.

Keys and values equal those of one prefill of all tokens ever appended in which each superseded token is hidden from
those that came after it left. Keys that remain after a removal were computed while the removed tokens were in the
cache, until the group is written anew.

A recurrent layer's state holds every token that was read, so with such layers the tokens that remain are prefilled
afresh once one leaves; their encoding is kept. The cache then always equals that of one fresh prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.qwen.cache import PrefixCache
from arr_coc.qwen.decode import PromptPart, prefill
from arr_coc.qwen.encoding import EncodedFrame
from arr_coc.qwen.pieces import Ids, same_picture
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.vision import VisualTokens
from arr_coc.types import FrameStamp, TokenPacket, shown_tokens


class Opening(Protocol):
    """Function that returns the token ids that introduce a frame, up to its first visual token."""

    def __call__(self, packet: TokenPacket, *, timed: bool) -> Ids: ...


@dataclass(slots=True, eq=False)
class VisualMemory:
    """State of a group of pictures in the cache; equal to itself only.

    `packets` were read, and the next token has the M-RoPE `position`. The rows of the cache from `first` on are the
    group's: visual tokens of a picture, or, with several frames (`timed`), visual tokens and the text between them.
    `numbers` int64 [rows]: each row's number among the `count` tokens ever appended, or its frame number. `regions`
    int64 [K, 3] and `embeds` [K, D] belong to the visual tokens in the rows `newest`: the picture's, or the newest
    frame's.
    """

    first: int
    position: int
    embeds: torch.Tensor
    timed: bool = False
    packets: list[TokenPacket] = field(default_factory=list)
    count: int = 0
    numbers: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    regions: torch.Tensor = field(default_factory=lambda: torch.zeros(0, 3, dtype=torch.int64))
    newest: slice = field(default_factory=lambda: slice(0, 0))

    @property
    def visual_tokens(self) -> int:
        """Number of visual tokens that it shows."""
        return shown_tokens(self.packets)

    def stamps(self, packets: Sequence[TokenPacket]) -> tuple[FrameStamp, ...]:
        """Return the stamps of the frames shown for a question about the last of `packets`, all of which were read."""
        visible_packets = [packet for packet in packets if not packet.is_empty]
        place = visible_packets[-1].place
        assert place is not None
        return *(packet.stamp for packet in visible_packets[-place.frames : -1]), packets[-1].stamp

    def precedes(self, packets: Sequence[TokenPacket]) -> bool:
        """Return True if `packets` begin with the packets that were read."""
        return len(self.packets) <= len(packets) and all(map(_same, self.packets, packets))

    def outdated_rows(self, packet: TokenPacket) -> npt.NDArray[np.int64]:
        """Return the rows that a packet removes: tokens that it supersedes, or frames that it displaces."""
        assert packet.place is not None
        if self.timed:
            return np.flatnonzero(self.numbers <= packet.place.frame - packet.place.frames)
        return np.flatnonzero(np.isin(self.numbers, packet.superseded))

    def remove(self, cache: PrefixCache[Any], rows: npt.NDArray[np.int64]) -> None:
        """Remove rows of the group from the cache; the group must be the cache's last piece."""
        holes, movers = (cache_rows - self.first for cache_rows in cache.remove(torch.from_numpy(rows + self.first)))
        count = len(self.numbers) - len(rows)
        self.numbers[holes.numpy()] = self.numbers[movers.numpy()]
        self.numbers = self.numbers[:count]
        if not self.timed:  # of several frames the newest one is about to be replaced
            self.regions, self.embeds = (
                tensor.index_copy(0, holes.to(tensor.device), tensor[movers.to(tensor.device)])[:count]
                for tensor in (self.regions, self.embeds)
            )
            self.newest = slice(self.first, self.first + count)

    def drop(self, rows: npt.NDArray[np.int64]) -> None:
        """Forget rows of a picture whose tokens that remain are to be prefilled afresh, in the same order."""
        stays = np.ones(len(self.numbers), bool)
        stays[rows] = False
        fresh = torch.from_numpy(np.flatnonzero(stays))
        self.numbers = self.numbers[stays]
        self.regions, self.embeds = self.regions[fresh], self.embeds[fresh.to(self.embeds.device)]
        self.newest = slice(self.first, self.first + len(fresh))

    def append(self, packet: TokenPacket, frame: EncodedFrame | None, visual: slice, end: int) -> None:
        """Record a packet that was read.

        Args:
            packet: The packet.
            frame: Its encoded regions; None if it has none.
            visual: Rows of the cache with its visual tokens.
            end: Row of the cache after its last token.
        """
        assert packet.place is not None
        self.packets.append(packet)
        if frame is None:
            return
        regions = frame.regions[0].cpu()
        embeds = frame.tokens.embeds[0].to(self.embeds)
        if self.timed:
            numbers = np.full(end - self.first - len(self.numbers), packet.place.frame)
            self.regions = regions
            self.embeds = embeds
            self.newest = visual
        else:
            numbers = np.arange(self.count, self.count + len(regions))
            self.regions, self.embeds = torch.cat([self.regions, regions]), torch.cat([self.embeds, embeds])
            self.newest = slice(self.first, visual.stop)
        self.count += len(regions)
        self.numbers = np.concatenate([self.numbers, numbers])


@dataclass(frozen=True, slots=True)
class GroupReading:
    """A group of pictures in the cache, except for `part`, which is to be prefilled next, with the question.

    `prefilled_tokens` were read for it or are in the part, `appended_tokens` visual ones among them. `new_tokens` and
    `new_visual_tokens` count those that the newest packet adds, whether it was read for an earlier question or is read
    again.
    """

    part: PromptPart
    memory: VisualMemory
    prefilled_tokens: int
    appended_tokens: int
    new_tokens: int
    new_visual_tokens: int


def _same(first: TokenPacket, second: TokenPacket) -> bool:
    if first is second:
        return True
    timed = first.place is not None and first.place.frames > 1
    if first.place != second.place or (timed and first.stamp.media_ns != second.stamp.media_ns):
        return False
    return np.array_equal(first.superseded, second.superseded) and same_picture(first, second)


def _afresh(
    qwen: QwenVL, cache: PrefixCache[Any], head: Ids, opening: Opening, memory: VisualMemory, packet: TokenPacket
) -> PromptPart:
    """Return the part that prefills a picture's tokens behind the prompt's head, as they were encoded; families with
    recurrent layers have no deepstack rows."""
    cache.rewind([head])
    part = PromptPart(qwen, len(cache), cache.position)
    if not cache.marks:
        part.text(head)
        part.mark(head)
    part.text(opening(packet, timed=False))
    part.visual(EncodedFrame(VisualTokens(memory.embeds[None]), memory.regions[None], packet.grid))
    return part


def read_group(
    qwen: QwenVL,
    cache: PrefixCache[Any],
    head: Ids,
    opening: Opening,
    closing: Ids,
    packets: Sequence[TokenPacket],
    encode: Callable[[TokenPacket], EncodedFrame],
) -> GroupReading:
    """Update the cache to a group of pictures; all tokens but those of the newest packet are prefilled.

    If the cache already holds the group, only new packets are read. The end of a picture that is kept up to date is not
    read.

    Args:
        qwen: The model.
        cache: The cache of the prompt.
        head: Token ids before the frames.
        opening: Function that returns the token ids that introduce a frame, or the picture.
        closing: Token ids that end a frame.
        packets: All packets of the group, oldest first.
        encode: Function that encodes a packet.
    """
    visible_packets = [packet for packet in packets if not packet.is_empty]
    place = visible_packets[-1].place
    assert place is not None
    first = place.first
    afresh = place.is_afresh
    if cache.recurrent_layers and place.frames > 1:  # none of them can leave
        first = max(place.frame - place.frames + 1, 0)
        afresh = afresh or place.frame >= place.frames
    visible_packets = [packet for packet in visible_packets if packet.place is not None and packet.place.frame >= first]
    if len(cache.marks) > 1:
        cached_piece = cache.marks[1].key
    else:
        cached_piece = None
    if isinstance(cached_piece, VisualMemory) and cached_piece.precedes(visible_packets):
        cache.rewind([head, cached_piece])
        memory = cached_piece
        part = PromptPart(qwen, len(cache), cached_piece.position)
        del cache.marks[1:]
    else:
        cache.rewind([head])
        part = PromptPart(qwen, len(cache), cache.position)
        if not cache.marks:
            part.text(head)
            part.mark(head)
        timed = place.frames > 1
        if not timed:
            part.text(opening(packets[0], timed=False))
        memory = VisualMemory(part.tokens, part.position, qwen.embed([]), timed)
    before = memory.count
    prefilled = 0
    for packet in visible_packets[len(memory.packets) :]:
        if len(rows := memory.outdated_rows(packet)):
            if cache.recurrent_layers:
                memory.drop(rows)
                part = _afresh(qwen, cache, head, opening, memory, packet)
            else:
                if part.length:
                    prefill(qwen, part, cache)
                    prefilled += part.length
                memory.remove(cache, rows)
                part = PromptPart(qwen, len(cache), memory.position)
        if memory.timed:
            part.text(opening(packet, timed=True))
        frame = encode(packet) if len(packet.regions) else None
        if frame is None:
            visual = slice(part.tokens, part.tokens)
        else:
            visual = part.visual(frame)
        if memory.timed:
            part.end_frame(packet.grid)
            part.text(closing)
        memory.append(packet, frame, visual, part.tokens)
        memory.position = part.position
    part.mark(memory)
    new: Sequence[TokenPacket] = () if packets[-1].is_empty else visible_packets if afresh else visible_packets[-1:]
    text = len(head) if new and not place.frame else 0
    if memory.timed:
        text += sum(len(opening(packet, timed=True)) + len(closing) for packet in new)
    elif new and not place.frame:
        text += len(opening(packets[0], timed=False))
    new_visual = sum(len(packet.regions) for packet in new)
    prefilled += part.length
    return GroupReading(part, memory, prefilled, memory.count - before, text + new_visual, new_visual)
