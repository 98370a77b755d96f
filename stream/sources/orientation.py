"""Orientation of decoded frames: the turn and the mirror of their display matrix."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

import av
import numpy as np
import numpy.typing as npt
from av.sidedata.sidedata import SideDataContainer, Type

Plane = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Orientation:
    """The way from a coded frame to an upright one: mirrored left to right first, if `mirrored`, then turned by `turns`
    quarter turns counterclockwise, 0 to 3."""

    turns: int = 0
    mirrored: bool = False

    @classmethod
    def of(cls, frame: av.VideoFrame) -> Orientation:
        """Read the frame's display matrix, into which FFmpeg puts the orientation of EXIF and of AVIF, too."""
        matrix = side_data_of(frame).get(Type.DISPLAYMATRIX)
        if matrix is None:
            return cls(quarter_turns(frame.rotation))
        # x' = a·x + c·y and y' = b·x + d·y, with x to the right and y down
        a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].tolist()
        area = a * d - b * c
        if not area:  # it shows nothing: the file is damaged, or says nothing
            return cls()
        if area > 0:
            return cls(quarter_turns(frame.rotation))
        return cls(quarter_turns(-math.degrees(math.atan2(-b, -a))), mirrored=True)

    @property
    def changes(self) -> bool:
        """True if the coded frame is not upright."""
        return self.mirrored or self.turns != 0

    @property
    def swaps_sides(self) -> bool:
        """True if the upright frame is as wide as the coded one is high."""
        return self.turns % 2 == 1

    @property
    def mirrored_axes(self) -> set[int]:
        """Axes of the coded frame, of 0 (rows) and 1 (columns), whose samples come out in the opposite order."""
        by_turns: dict[int, set[int]] = {0: set(), 1: {1}, 2: {0, 1}, 3: {0}}
        return by_turns[self.turns] ^ ({1} if self.mirrored else set())

    def upright(self, plane: Plane) -> Plane:
        """Return a coded plane, uint8 [H, W] or [H, W, 3], as it is shown, in separate memory if that differs."""
        if not self.changes:
            return plane
        return np.ascontiguousarray(np.rot90(plane[:, ::-1] if self.mirrored else plane, self.turns))


def quarter_turns(rotation_deg: float) -> int:
    """Return the counterclockwise quarter turns, 0 to 3, nearest to a rotation in degrees."""
    return round(rotation_deg / 90) % 4


def side_data_of(frame: av.VideoFrame) -> SideDataContainer:
    """Return the side data of a frame, which keep the frame alive; up to the first of a type that PyAV does not know.

    `frame.side_data` would create a reference cycle between the frame and its container: the frame would live until
    garbage collection, and the decoder would allocate new memory for each frame meanwhile.
    """
    side_data = SideDataContainer.__new__(SideDataContainer)
    # PyAV's enumeration lacks some types, such as EXIF. What it has read before one of them stays.
    with suppress(ValueError):
        side_data.__init__(frame)  # type: ignore[misc]
    return side_data
