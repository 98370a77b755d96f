"""What a reader of the OpenGL store gets."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from arr_coc.ops.gl.plan import cheaper
from arr_coc.ops.gl.reading import gather, read_back
from arr_coc.ops.gl.sampling import Floats, sample, sample_along
from arr_coc.ops.gl.texture import TileTexture
from arr_coc.ops.mipmaps import allocate_levels
from arr_coc.ops.planes import Plane, Rectangle
from arr_coc.ops.rectangles import cover

RECTANGLE_COST = 100
"""What reading a rectangle costs beside its tiles, in tiles: five levels, two calls each."""


class GlTexels:
    """Level 0 is the host's own copy, from which the texture was filled. The others are read back, where they changed.

    Any number of threads read, none while the writer writes.
    """

    def __init__(self, texture: TileTexture, level0: Plane) -> None:
        rows, cols = texture.shape
        self._texture = texture
        self._levels = dict(enumerate(allocate_levels(rows, cols)))
        self._levels[0] = level0
        self._stale = np.zeros((rows, cols), bool)
        self._refreshing = threading.Lock()

    def changed(self, rectangles: tuple[Rectangle, ...]) -> None:
        """Remembers what the writer painted."""
        for row0, col0, row1, col1 in rectangles:
            self._stale[row0:row1, col0:col1] = True

    def read(self, level: int) -> Plane:
        """One level that exists: uint8 [rows * 32 >> level, cols * 32 >> level, 3]."""
        if level:
            with self._refreshing:
                if self._stale.any():
                    self._refresh()
        return self._levels[level]

    def gather(self, regions: npt.NDArray[np.int64]) -> Plane:
        """The pixels of regions [K, 3] (level, row, col) that exist: uint8 [K, 3, 32, 32], edge-clamped."""
        return gather(self._texture, regions)

    def sample(self, points: Floats) -> npt.NDArray[np.float32]:
        """Colours at points; see `arr_coc.ops.gl.sampling.sample`."""
        return sample(self._texture, points)

    def sample_along(self, points: Floats, footprints: Floats, width_px: float = 1.0) -> npt.NDArray[np.float32]:
        """Colours averaged along lines; see `arr_coc.ops.gl.sampling.sample_along`."""
        return sample_along(self._texture, points, footprints, width_px)

    def _refresh(self) -> None:
        """All levels at once: one wait for the device is dearer than the texels that nobody wants."""
        rectangles = cheaper(cover(self._stale), RECTANGLE_COST)
        read_back(self._texture, rectangles, {level: self._levels[level] for level in self._levels if level})
        self._stale[:] = False
