"""A decoded frame made ready for the pipeline, and what two frames must share to be comparable."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import av

from arr_coc.types import Colour, FramePlanes
from stream.errors import SourceError
from stream.sources.fit import Fit
from stream.sources.planes import planes_of, rgb_of


def prepared(frame: av.VideoFrame, fit: Fit, name: str) -> FramePlanes:
    """The frame's planes at their work size. Raises SourceError where its format or shape cannot be converted."""
    try:
        return fit.apply(planes_of(frame), partial(rgb_of, frame))
    except av.FFmpegError as error:
        raise SourceError(
            f"{name} has pictures of the format {frame.format.name}, which FFmpeg cannot convert ({error.strerror}); "
            "convert them to yuv420p"
        ) from error


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
