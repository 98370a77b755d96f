"""Tiles of two pictures compared: how well a motion explains a tile, and how far it is still off.

Tiles are patches of a few texels each way, one after another in memory, so that all of them are measured at once. Sums
are of whole numbers, and everything else is computed tile by tile: results do not depend on the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import TILE_PX
from arr_coc.video.camera_motion import CameraMotion

Luma = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Places = npt.NDArray[np.float64]

STRUCTURE = 1.0
"""Square root of the smaller eigenvalue of a tile's structure tensor, in grey levels a texel, that gives half of the
confidence: twice what noise of σ = 2 leaves after the area mean and the blur."""

LEAST_TEXELS = 4
"""Fewest texels of a tile each way."""

FITS = 0.45
MISFITS = 0.95
"""Mean difference after motion, over the tile's own standard deviation, that is as good as none, and that unrelated
content has. Texture of single pixels that moved by half a texel has 0.47."""

EXPLAINED = 0.06
EXPLAINED_OF_CHANGE = 0.25
"""A motion explains a tile if it leaves noise and at most this share of the tile's standard deviation, or of what no
motion leaves. Lines of text over lines of other text leave 0.2 standard deviations."""

NOISE = 2.0
"""Grey levels of difference that say nothing."""

REST_TEXELS = 1.0
LEAST_SLOPE = 0.1
"""Largest registration step; there is none if the squared slope is below this."""

ROW_STEP = 2
"""Pictures are blurred, so every other row of texels is enough, unless tiles have hardly any."""

FRACTION_BITS = 7
"""Places in a picture are rounded to 1/128 of a texel."""

NOT_COMPARED = 1 << 40
"""Difference that a motion leaves in tiles for which it was not tried: more than any."""


@dataclass(frozen=True, slots=True)
class MovedTiles:
    """One motion for each of n tiles: `dy_px`, `dx_px` float32 [n], and `sad` int64 [n], the sum of absolute
    differences that it leaves. `patches` uint8 [n, k] are the k texels compared of the old picture, moved so."""

    dy_px: Floats
    dx_px: Floats
    sad: Numbers
    patches: Luma

    @property
    def residual(self) -> Floats:
        """The mean difference that it leaves: float32 [n]."""
        return self.sad.astype(np.float32) * np.float32(1 / self.patches.shape[1])

    def or_better(self, other: MovedTiles) -> MovedTiles:
        """For each tile the one that leaves less: this one if both leave as much."""
        better = other.sad < self.sad
        return MovedTiles(
            np.where(better, other.dy_px, self.dy_px),
            np.where(better, other.dx_px, self.dx_px),
            np.where(better, other.sad, self.sad),
            np.where(better[:, None], other.patches, self.patches),
        )


class TilePair:
    """Two pictures uint8 [rows · texels, cols · texels] of a frame, compared in n of its tiles, counted row by row."""

    def __init__(self, old: Luma, new: Luma, texels: int, tiles: npt.NDArray[np.intp]) -> None:
        self.shape = new.shape[0] // texels, new.shape[1] // texels
        self.tiles = tiles
        self.texels = texels
        self.texel_px = TILE_PX // texels
        self._old = old
        step = ROW_STEP if texels > LEAST_TEXELS else 1
        row, col = np.divmod(tiles, self.shape[1])
        inner = np.arange(texels)
        down, across = np.meshgrid(inner[step // 2 :: step], inner, indexing="ij")
        self._y = (row * texels)[:, None] + down.ravel()
        self._x = (col * texels)[:, None] + across.ravel()
        self._count = self._y.shape[1]
        self._new_texels: Luma = new[self._y, self._x]
        values = self._new_texels.astype(np.int64)
        spread = self._count * (values * values).sum(axis=1) - values.sum(axis=1) ** 2
        self._content = np.maximum(np.sqrt(spread.astype(np.float32)) * np.float32(1 / self._count), np.float32(NOISE))
        # Sobel's kernel sums eight differences of one texel.
        slopes = cv2.spatialGradient(new, borderType=cv2.BORDER_REPLICATE)
        self._slopes = sy, sx = [slope[self._y, self._x].astype(np.int64) for slope in slopes[::-1]]
        self._products = [
            self._means(first, second) * np.float32(1 / 64) for first, second in ((sy, sy), (sx, sx), (sy, sx))
        ]

    def structure(self) -> Floats:
        """Return the share in [0, 1] of each tile: whether it has structure in two directions. float32 [n]."""
        yy, xx, xy = self._products
        half = (yy - xx) * np.float32(0.5)
        least = np.maximum((yy + xx) * np.float32(0.5) - np.sqrt(half * half + xy * xy), np.float32(0))
        return least / (least + np.float32(STRUCTURE**2))

    def explained_tiles(self, residual: Floats, zero_residual: Floats) -> Mask:
        """Return the tiles explained by a motion with this mean difference; `zero_residual` is that of no motion: bool
        [n]."""
        change = np.float32(EXPLAINED_OF_CHANGE) * (zero_residual - np.float32(NOISE))
        return residual <= np.maximum(np.float32(EXPLAINED) * self._content, change) + np.float32(NOISE)

    def fit(self, residual: Floats) -> Floats:
        """Return how well what leaves this mean difference explains tiles, in [0, 1]: float32 [n]."""
        misfit = np.maximum(residual - np.float32(NOISE), np.float32(0)) / self._content
        return np.clip((np.float32(MISFITS) - misfit) * np.float32(1 / (MISFITS - FITS)), np.float32(0), np.float32(1))

    def without_motion(self) -> MovedTiles:
        """No motion."""
        zeros = np.zeros(len(self.tiles), np.float32)
        return self._explanation(zeros, zeros, self._old[self._y, self._x])

    def with_camera(self, camera: CameraMotion) -> MovedTiles:
        """Explain all tiles by the motion of a camera."""
        patches = moved_texels(self._old, camera, self.texels, self._y, self._x)
        dy, dx = (part.ravel()[self.tiles] for part in camera.over(*self.shape))
        return self._explanation(dy, dx, patches)

    def with_motions(self, dy_px: Floats, dx_px: Floats, mask: Mask) -> MovedTiles:
        """Explain each tile by its own motion.

        Args:
            dy_px: Motion down, float32 [n].
            dx_px: Motion to the right, float32 [n].
            mask: The tiles that move, bool [n]; the others are not compared.
        """
        sad = np.full(len(mask), NOT_COMPARED, np.int64)
        patches = np.zeros_like(self._new_texels)
        dy, dx = (part[mask].astype(np.float64)[:, None] / self.texel_px for part in (dy_px, dx_px))
        patches[mask] = texels = texels_at(self._old, self._y[mask] - dy, self._x[mask] - dx)
        sad[mask] = self._sad(self._new_texels[mask], texels)
        return MovedTiles(dy_px, dx_px, sad, patches)

    def rest(self, patches: Luma) -> tuple[Floats, Floats]:
        """Return the distance of patches [n, k] from their present places, in pixels, float32 [n] each: one step of
        Lucas and Kanade's registration (1981), for what is within a texel."""
        change = self._new_texels.astype(np.int64) - patches
        by, bx = (self._means(slope, change) * np.float32(self.texel_px / 8) for slope in self._slopes)
        yy, xx, xy = self._products
        least = np.float32(LEAST_SLOPE)
        most = np.float32(REST_TEXELS * self.texel_px)
        determinant = yy * xx - xy * xy + least * (yy + xx) + np.float32(LEAST_SLOPE**2)
        steps = (xy * bx - (xx + least) * by) / determinant, (xy * by - (yy + least) * bx) / determinant
        dy, dx = (np.clip(step, -most, most) for step in steps)
        return dy, dx

    def _explanation(self, dy_px: Floats, dx_px: Floats, patches: Luma) -> MovedTiles:
        return MovedTiles(dy_px, dx_px, self._sad(self._new_texels, patches), patches)

    def _sad(self, first: Luma, second: Luma) -> Numbers:
        return np.abs(first.astype(np.int64) - second).sum(axis=1)

    def _means(self, first: Numbers, second: Numbers) -> Floats:
        """Return the mean product of the texels of each tile: float32 [n] of two [n, k]."""
        return (first * second).sum(axis=1).astype(np.float32) * np.float32(1 / self._count)


def moved_texels(old: Luma, camera: CameraMotion, texels: int, y: Numbers, x: Numbers) -> Luma:
    """Texels of a picture after a camera's motion.

    Args:
        old: The picture, luma uint8 [rows * texels, cols * texels].
        camera: The motion.
        texels: Texels of a tile each way.
        y: Rows of the texels, [...].
        x: Columns of the texels, [...].

    Returns:
        uint8 [...].
    """
    shape = old.shape[0] // texels, old.shape[1] // texels
    down, across = (a * y + (b * x + c) for a, b, c in camera.sources(*shape, texels))
    return texels_at(old, down, across)


def texels_at(picture: Luma, down: Places, across: Places) -> Luma:
    """Return a picture between its texels, bilinear; beyond its edge the edge goes on.

    Args:
        picture: Luma uint8 [h, w].
        down: Places down, float [...], in texels.
        across: Places across, float [...], in texels.

    Returns:
        uint8 [...].
    """
    unit = 1 << FRACTION_BITS
    y, x = (np.rint(place * unit).astype(np.int64) for place in (down, across))
    fy = y & (unit - 1)
    fx = x & (unit - 1)
    (top, bottom), (left, right) = (
        [np.clip((place >> FRACTION_BITS) + step, 0, size - 1) for step in (0, 1)]
        for place, size in zip((y, x), picture.shape, strict=True)
    )
    values = picture.astype(np.int64)
    above = values[top, left] * (unit - fx) + values[top, right] * fx
    below = values[bottom, left] * (unit - fx) + values[bottom, right] * fx
    half = 1 << (2 * FRACTION_BITS - 1)
    return ((above * (unit - fy) + below * fy + half) >> (2 * FRACTION_BITS)).astype(np.uint8)
