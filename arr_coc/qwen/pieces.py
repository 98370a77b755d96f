"""Pieces of a prompt that serve as keys of cache marks: frames, and overviews at their beginning."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch

from arr_coc.qwen.encoding import EncodedFrame, Packet
from arr_coc.qwen.vision_cache import Pixels
from arr_coc.types import TokenPacket

Ids: TypeAlias = tuple[int, ...]


def same_picture(one: Packet, other: Packet) -> bool:
    """Return True if two packets show the same pixels in the same regions.

    A FramePacket's image may be overwritten after its answer, so it equals no other.
    """
    if not isinstance(one, TokenPacket) or not isinstance(other, TokenPacket):
        return False
    if (one.grid, one.overview) != (other.grid, other.overview):
        return False
    return np.array_equal(one.regions, other.regions) and same_pixels(one.pixels, other.pixels)


def same_pixels(one: Pixels, other: Pixels) -> bool:
    """Return True if pixels are equal; pixels on a device are compared there."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    first, second = (torch.as_tensor(pixels) for pixels in (one, other))
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
        return (self,) if self.overview is None else (self.overview, self)
