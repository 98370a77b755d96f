"""Pieces of a prompt that serve as keys of cache marks: frames, and overviews at their beginning."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch

from arr_coc.qwen.encoding import EncodedFrame, Packet
from arr_coc.qwen.vision_cache import Pixels
from arr_coc.types import TokenPacket

Ids: TypeAlias = tuple[int, ...]


def same_picture(first: Packet, second: Packet) -> bool:
    """Return True if two packets show the same pixels in the same regions.

    A FramePacket's image may be overwritten after its answer, so it equals no other.
    """
    if not isinstance(first, TokenPacket) or not isinstance(second, TokenPacket):
        return False
    if (first.grid, first.overview) != (second.grid, second.overview):
        return False
    return np.array_equal(first.regions, second.regions) and same_pixels(first.pixels, second.pixels)


def same_pixels(first: Pixels, second: Pixels) -> bool:
    """Return True if pixels are equal; pixels on a device are compared there."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second)
    first = torch.as_tensor(first)
    second = torch.as_tensor(second)
    return first.device == second.device and torch.equal(first, second)


class CausalPiece:
    """A frame, or its overview alone, in the cache: the encoded `frame`, with its tokens at rows `visual`.

    Equal to another piece of its kind with the same picture and opening.
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
    """The beginning of a frame: its opening and its overview. The frame's own tokens continue at the same position."""


class CausalFrame(CausalPiece):
    """A whole frame: its `overview`, if any, and its own tokens."""

    def __init__(self, packet: Packet, opening: Ids) -> None:
        super().__init__(packet, opening)
        self.overview: CausalOverview | None = None
        if isinstance(packet, TokenPacket) and packet.overview:
            self.overview = CausalOverview(packet.overview_part(), opening)

    @property
    def pieces(self) -> tuple[CausalPiece, ...]:
        """Its parts as the cache marks them, in order."""
        if self.overview is None:
            return (self,)
        return (self.overview, self)
