"""Planes of a stream, and their format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_coc.errors import ShapeError
from arr_coc.types import Colour, FramePlanes, Layout, TileGrid

Plane = npt.NDArray[np.uint8]
SUBSAMPLING = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class PlaneFormat:
    """Size, layout, subsampling and colour of a stream's frames: what a store is opened for.

    `subsampling` is (sy, sx) of the chroma planes; (1, 1) where there are none.
    """

    layout: Layout
    height_px: int
    width_px: int
    subsampling: tuple[int, int]
    colour: Colour

    @classmethod
    def of(cls, planes: FramePlanes) -> PlaneFormat:
        """The format of one frame. Raises ShapeError where its planes do not belong together."""
        expected = {"yuv": 3, "gray": 1, "rgb": 1}[planes.layout]
        if len(planes.planes) != expected:
            raise ShapeError(f"layout {planes.layout} has {expected} planes, got {len(planes.planes)}")
        for plane in planes.planes:
            if plane.dtype != np.uint8:
                raise ShapeError(f"planes hold uint8 samples, got {plane.dtype}")
        first = planes.planes[0]
        wanted = (*first.shape[:2], 3) if planes.layout == "rgb" else first.shape[:2]
        if first.shape != wanted or first.size == 0:
            raise ShapeError(f"layout {planes.layout} does not fit a plane of shape {first.shape}")
        subsampling = _subsampling(planes) if planes.layout == "yuv" else (1, 1)
        return cls(planes.layout, first.shape[0], first.shape[1], subsampling, planes.colour)

    @property
    def grid(self) -> TileGrid:
        return TileGrid.of(self.height_px, self.width_px)

    def steps(self) -> tuple[tuple[int, int], ...]:
        """For each plane, how many texels one of its samples spans: (vertically, horizontally)."""
        return ((1, 1), self.subsampling, self.subsampling) if self.layout == "yuv" else ((1, 1),)


def _subsampling(planes: FramePlanes) -> tuple[int, int]:
    luma, u, v = (plane.shape for plane in planes.planes)
    for sy in SUBSAMPLING:
        for sx in SUBSAMPLING:
            if u == v == (-(-luma[0] // sy), -(-luma[1] // sx)):
                return sy, sx
    raise ShapeError(f"chroma planes {u} and {v} are not a 1, 2 or 4 fold subsampling of luma {luma}")
