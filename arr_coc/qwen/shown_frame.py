"""A frame as one causal run of the language model shows it."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from arr_coc.qwen.encoding import EncodedFrame, Packet
from arr_coc.types import TokenPacket

Ids: TypeAlias = tuple[int, ...]


def same_picture(one: Packet, other: Packet) -> bool:
    """Whether two packets show the same pixels in the same regions.

    A FramePacket's image may be overwritten once it has been answered, so it equals no other.
    """
    if not isinstance(one, TokenPacket) or not isinstance(other, TokenPacket) or one.grid != other.grid:
        return False
    return np.array_equal(one.regions, other.regions) and np.array_equal(one.pixels, other.pixels)


class Shown:
    """A frame as the cache knows it: `frame` encoded, its tokens at `visual` among the cached ones.

    Equal to another where the same picture is shown under the same heading.
    """

    def __init__(self, packet: Packet, opening: Ids) -> None:
        self.packet = packet
        self.opening = opening
        self.frame: EncodedFrame
        self.visual = slice(0, 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shown) or self.opening != other.opening:
            return False
        return same_picture(self.packet, other.packet)

    __hash__ = None  # type: ignore[assignment]
