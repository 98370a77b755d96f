"""`PictureMask`: parts of the picture that are black before anything else reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from arr_coc.texture.polygons import Polygon, touched_samples
from arr_coc.texture.store.planes import SUBSAMPLING
from arr_coc.types import TILE_PX, CodedMotion, FramePlanes, TileGrid

Plane = npt.NDArray[np.uint8]

LIMITED_BLACK = 16
NEUTRAL = 128
"""Luma of black in samples of limited range, and chroma without colour."""


class PictureMask:
    """Polygons that are black in every frame, whatever its size, layout and chroma sampling.

    A sample that a polygon touches is black; of chroma, without colour. If scaling or conversion has mixed neighbouring
    pixels (`FramePlanes.reach_px`), so are the samples that may hold something of the masked part. One thread uses it.
    """

    def __init__(self, polygons: Sequence[Polygon]) -> None:
        """`polygons` have corners (x, y) in shares of the picture, as it is shown."""
        self._polygons = tuple(polygons)
        self._touched = lru_cache(maxsize=8)(self._touched_samples)
        self._tiles = lru_cache(maxsize=2)(self._touched_tiles)

    def apply(self, planes: FramePlanes) -> FramePlanes:
        """Return a frame with the masked part black, in separate memory, and without the codec's motion there."""
        picture = planes.height_px, planes.width_px
        yuv = planes.layout == "yuv"
        if planes.layout != "rgb" and not planes.colour.full_range:
            black = LIMITED_BLACK
        else:
            black = 0
        masked = tuple(
            self._blackened(plane, picture, planes.reach_px, NEUTRAL if yuv and place else black)
            for place, plane in enumerate(planes.planes)
        )
        motion = planes.coded_motion
        if motion is not None:
            motion = _MaskedMotion(motion, self)
        return replace(planes, planes=masked, coded_motion=motion, owner=None)

    def tiles(self, grid: TileGrid) -> npt.NDArray[np.bool_]:
        """Return the tiles of which the polygons cover something: bool [rows, cols]."""
        return self._tiles(grid)

    def _blackened(self, plane: Plane, picture: tuple[int, int], reach_px: int, value: int) -> Plane:
        (top, bottom, left, right), touched = self._touched((plane.shape[0], plane.shape[1]), picture, reach_px)
        copy = np.array(plane)
        copy[top:bottom, left:right][touched] = value
        return copy

    def _touched_samples(
        self, shape: tuple[int, int], picture: tuple[int, int], reach_px: int
    ) -> tuple[tuple[int, int, int, int], npt.NDArray[np.bool_]]:
        """Return the box (top, bottom, left, right) of the touched samples of a plane, and which of it are."""
        factors = [
            next(step for step in SUBSAMPLING if -(-full // step) == size)
            for full, size in zip(picture, shape, strict=True)
        ]
        step = factors[0] / picture[0], factors[1] / picture[1]
        reach = reach_px / factors[0], reach_px / factors[1]
        touched = np.zeros(shape, bool)
        for polygon in self._polygons:
            touched |= touched_samples(polygon, shape, step, reach)
        rows, cols = (np.flatnonzero(touched.any(axis=axis)) for axis in (1, 0))
        if not len(rows):
            return (0, 0, 0, 0), touched[:0, :0]
        top = int(rows[0])
        bottom = int(rows[-1]) + 1
        left = int(cols[0])
        right = int(cols[-1]) + 1
        return (top, bottom, left, right), touched[top:bottom, left:right].copy()

    def _touched_tiles(self, grid: TileGrid) -> npt.NDArray[np.bool_]:
        tiles = np.zeros(grid.shape, bool)
        for polygon in self._polygons:
            tiles |= touched_samples(polygon, grid.shape, (TILE_PX / grid.height_px, TILE_PX / grid.width_px))
        return tiles


@dataclass(frozen=True, slots=True)
class _MaskedMotion:
    """A `CodedMotion` that states nothing of masked tiles."""

    motion: CodedMotion
    mask: PictureMask

    def over(self, grid: TileGrid) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
        """Return motion as `CodedMotion.over`, NaN in masked tiles."""
        motion = self.motion.over(grid)
        if motion is None:
            return None
        tiles = self.mask.tiles(grid)
        down, across = (np.where(tiles, np.float32(np.nan), part) for part in motion)
        return None if np.isnan(down).all() else (down, across)
