"""What two frames must share to be comparable."""

from __future__ import annotations

from dataclasses import dataclass

import av

from arr_coc.types import Colour, FramePlanes


@dataclass(frozen=True, slots=True)
class Form:
    """Size, planes and colour encoding of a frame."""

    coded_size: tuple[int, int]
    shapes: tuple[tuple[int, ...], ...]
    colour: Colour

    @classmethod
    def of(cls, frame: av.VideoFrame, planes: FramePlanes) -> Form:
        return cls((frame.height, frame.width), tuple(plane.shape for plane in planes.planes), planes.colour)

    def change_since(self, previous: Form | None) -> str | None:
        """The `discontinuity` of a frame of this form after one of the `previous` form."""
        if previous is None:
            return "start"
        if self.coded_size != previous.coded_size:
            return "resolution"
        return "format" if self != previous else None
