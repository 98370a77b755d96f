"""Motion vectors of decoded frames, if FFmpeg's decoder exports them.

The decoders of H.264, MPEG-1, MPEG-2 and MPEG-4 Visual do; those of HEVC, VP8, VP9 and AV1 do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import av
import numpy as np
import numpy.typing as npt
from av.sidedata.motionvectors import MotionVectors
from av.sidedata.sidedata import Type

from arr_coc.types import TILE_PX, TileGrid
from stream.sources.orientation import Orientation, side_data_of

EXPORT_VECTORS = {"flags2": "+export_mvs"}
"""Decoder option; decoders that cannot export vectors ignore it."""

Floats = npt.NDArray[np.float32]


def vectors_of(frame: av.VideoFrame) -> MotionVectors | None:
    """Return the motion vectors of a frame, which keep the frame alive."""
    vectors = side_data_of(frame).get(Type.MOTION_VECTORS)
    if isinstance(vectors, MotionVectors):
        return vectors
    return None


@dataclass(frozen=True, slots=True)
class DecodedVectors:
    """A `CodedMotion` that is read from its frame on demand, at no cost before.

    The coded frame has `coded_px` (height, width) pixels. `orientation` makes it upright; then it is scaled to
    `height_px` × `width_px`.
    """

    exported: MotionVectors
    coded_px: tuple[int, int]
    orientation: Orientation
    height_px: int
    width_px: int

    def over(self, grid: TileGrid) -> tuple[Floats, Floats] | None:
        """Return motion as `CodedMotion.over`: means of the vectors in a tile, weighted by the area of their blocks.

        Blocks that refer to an earlier frame count; in tiles without them, blocks that refer to a later frame, negated.
        """
        vectors = np.asarray(self.exported.to_ndarray())
        # The smallest block of these codecs has 4×4 pixels and refers to two frames at most; a frame with more vectors
        # is damaged.
        most = 2 * self.coded_px[0] * self.coded_px[1] // 16
        if not 0 < len(vectors) <= most:
            return None
        if (vectors["motion_scale"] == 0).any():
            return None
        motion = self._on_tiles(_select(vectors, vectors["source"] < 0), grid)
        future = vectors["source"] > 0
        if future.any() and np.isnan(motion).any():
            motion = np.where(np.isnan(motion), -self._on_tiles(_select(vectors, future), grid), motion)
        if np.isnan(motion).all():
            return None
        return (motion[0], motion[1])

    def _on_tiles(self, vectors: npt.NDArray[np.void], grid: TileGrid) -> Floats:
        """Return motion since the frame that vectors refer to: float32 [2, rows, cols], NaN in tiles with too little
        coverage."""
        x, y, dx, dy = self._upright(vectors)
        scale = np.float32(self.height_px * self.width_px / (self.coded_px[0] * self.coded_px[1]))
        area = np.asarray(vectors["w"] * (vectors["h"] * scale), np.float32)
        in_grid = (y >= 0) & (y < grid.rows * TILE_PX) & (x >= 0) & (x < grid.cols * TILE_PX)
        area[~in_grid | (np.abs(dy) >= self.height_px) | (np.abs(dx) >= self.width_px)] = 0
        row, col = (np.where(in_grid, [y, x], 0) * (1 / TILE_PX)).astype(np.intp)
        tile = row * grid.cols + col
        coverage = np.bincount(tile, area, grid.tiles)
        sums = np.stack([np.bincount(tile, area * dy, grid.tiles), np.bincount(tile, area * dx, grid.tiles)])
        # least share of a tile that vectors must cover
        means = np.where(coverage >= 0.5 * TILE_PX**2, sums / np.maximum(coverage, 1), np.nan)
        motion: Floats = means.astype(np.float32)
        return motion.reshape(2, *grid.shape)

    def _upright(self, vectors: npt.NDArray[np.void]) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the centres of the blocks and the motion of their content, in pixels of the upright, scaled frame: x,
        y, dx, dy, float32 [n] each."""
        x, y, dx, dy = (vectors[name].astype(np.float32) for name in ("dst_x", "dst_y", "motion_x", "motion_y"))
        scale = np.float32(-1) / vectors["motion_scale"].astype(np.float32)
        dx = dx * scale
        dy = dy * scale
        height, width = self.coded_px
        if self.orientation.mirrored:
            x = width - x
            dx = -dx
        for _ in range(self.orientation.turns):
            x, y, dx, dy = y, width - x, dy, -dx
            height, width = width, height
        across = self.width_px / width
        down = self.height_px / height
        if across == down == 1:
            return (x, y, dx, dy)
        return (x * across, y * down, dx * across, dy * down)


def _select(vectors: npt.NDArray[np.void], mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.void]:
    """Select from an array of structures; each structure is copied as a whole."""
    return vectors.view(np.dtype((np.void, vectors.itemsize)))[mask].view(vectors.dtype)
