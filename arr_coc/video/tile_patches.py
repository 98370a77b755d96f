"""Pairs of pictures compared tile by tile: how well a motion explains a tile, and how far it is still off.

Tiles are patches of a few texels each way, one after another in memory, so that all of them are measured at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.store.planes import tiled
from arr_coc.types import TILE_PX
from arr_coc.video.camera_motion import CameraMotion

Luma = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

STRUCTURE = 1.0
"""Square root of the smaller eigenvalue of a tile's structure tensor, in grey levels a texel, that gives half of the
confidence: twice what noise of σ = 2 leaves after the area mean and the blur."""

LEAST_TEXELS = 4
"""Fewest texels of a tile each way."""

FITS, MISFITS = 0.45, 0.95
"""Mean difference after motion, over the tile's own standard deviation, that is as good as none, and that unrelated
content has. Texture of single pixels that moved by half a texel has 0.47."""

EXPLAINED = 0.06
EXPLAINED_OF_CHANGE = 0.25
"""A motion explains a tile where it leaves noise and at most this share of the tile's standard deviation, or of what no
motion leaves. Lines of text over lines of other text leave 0.2 standard deviations."""

NOISE = 2.0
"""Grey levels of difference that say nothing."""

REST_TEXELS = 1.0
LEAST_SLOPE = 0.1
"""A registration step goes at most so far, and nowhere where the squared slope is below this."""

ROW_STEP = 2
"""Pictures are blurred, so every other row of texels is enough, unless tiles have hardly any."""

_AT_ONCE = 1 << 14  # tiles; OpenCV's remap takes fewer than 2^15 rows


@dataclass(frozen=True, slots=True)
class MovedTiles:
    """One motion for each tile: `dy_px`, `dx_px` and the mean difference that it leaves, `left`, float32 [rows, cols].

    `patches` uint8 [rows · cols, k] are the k texels compared of the old picture, moved so.
    """

    dy_px: Floats
    dx_px: Floats
    left: Floats
    patches: Luma

    def or_better(self, other: MovedTiles) -> MovedTiles:
        """For each tile the one that leaves less: this one where both leave as much."""
        better = other.left < self.left
        patches = np.where(better.ravel(), _rows(other.patches), _rows(self.patches))
        return MovedTiles(
            np.where(better, other.dy_px, self.dy_px),
            np.where(better, other.dx_px, self.dx_px),
            np.minimum(other.left, self.left),
            patches.view(np.uint8).reshape(self.patches.shape),
        )


def _rows(patches: Luma) -> npt.NDArray[np.void]:
    """Patches [n, k] as n elements, each copied at once."""
    return patches.view(np.dtype((np.void, patches.shape[1])))[:, 0]


class TilePair:
    """Two pictures uint8 [rows · texels, cols · texels] of the same part of a frame, compared tile by tile."""

    def __init__(self, old: Luma, new: Luma, texels: int) -> None:
        self.shape = new.shape[0] // texels, new.shape[1] // texels
        self.texels, self.texel_px = texels, TILE_PX // texels
        self._old = old
        self._row_step = ROW_STEP if texels > LEAST_TEXELS else 1
        self._seen: Luma = self._patches(new)
        values = self._seen.astype(np.float32)
        spread = np.sqrt(np.maximum(self._means(values, values) - self._row_means(self._seen) ** 2, 0))
        self._content = np.maximum(spread, np.float32(NOISE))
        # Sobel's kernel sums eight differences of one texel.
        across, down = cv2.spatialGradient(new)
        self._slopes = sy, sx = [self._patches(part).astype(np.float32) for part in (down, across)]
        self._products = [self._means(*of) * np.float32(1 / 64) for of in ((sy, sy), (sx, sx), (sy, sx))]

    def structure(self) -> Floats:
        """Share in [0, 1] of each tile: whether it has structure in two directions. float32 [rows, cols]."""
        yy, xx, xy = self._products
        least = np.maximum((yy + xx) / 2 - np.sqrt(((yy - xx) / 2) ** 2 + xy * xy), 0)
        return np.asarray(least / (least + STRUCTURE**2), np.float32)

    def explained(self, left: Floats, still: Floats) -> Mask:
        """Tiles that a motion explains which leaves this mean difference, where no motion leaves `still`: bool
        [rows, cols]."""
        content, change = np.float32(EXPLAINED) * self._content, np.float32(EXPLAINED_OF_CHANGE) * (still - NOISE)
        return left <= np.maximum(content, change) + np.float32(NOISE)

    def fit(self, left: Floats) -> Floats:
        """Return how well what leaves this mean difference explains tiles, in [0, 1]: float32 [rows, cols]."""
        unlike = np.maximum(left - np.float32(NOISE), 0) / self._content
        return np.clip((MISFITS - unlike) * np.float32(1 / (MISFITS - FITS)), 0, 1)

    def still(self) -> MovedTiles:
        """No motion."""
        nothing = np.zeros(self.shape, np.float32)
        return self._explanation(nothing, nothing, self._patches(self._old))

    def with_camera(self, camera: CameraMotion) -> tuple[MovedTiles, Luma]:
        """All tiles move as a camera does; the old picture, moved so."""
        moved = camera.moved(self._old, self.texels)
        return self._explanation(*camera.over(*self.shape), self._patches(moved)), moved

    def each(self, dy_px: Floats, dx_px: Floats, where: Mask) -> MovedTiles:
        """The tiles `where` bool [rows, cols] move each by itself; no motion of the others, which leaves infinity."""
        patches = np.zeros_like(self._seen)
        left = np.full(self.shape, np.inf, np.float32)
        tiles = np.flatnonzero(where)
        for part in (tiles[at : at + _AT_ONCE] for at in range(0, len(tiles), _AT_ONCE)):
            patches[part] = read = self._read_each(dy_px.ravel()[part], dx_px.ravel()[part], part)
            sums = cv2.reduce(cv2.absdiff(self._seen[part], read), 1, cv2.REDUCE_SUM, dtype=cv2.CV_32S)
            left.ravel()[part] = sums[:, 0] / read.shape[1]
        return MovedTiles(dy_px, dx_px, left, patches)

    def _read_each(self, dy_px: Floats, dx_px: Floats, tiles: npt.NDArray[np.intp]) -> Luma:
        """The old picture's texels of some tiles, counted row by row, that moved each by itself: uint8 [m, k]."""
        row, col = np.divmod(tiles, self.shape[1])
        inner = np.arange(self.texels, dtype=np.float32)
        rows = inner[self._row_step // 2 :: self._row_step]
        across, down = np.empty((2, len(tiles), len(rows), self.texels), np.float32)
        across[:] = ((col * self.texels - dx_px / self.texel_px).astype(np.float32)[:, None] + inner)[:, None, :]
        down[:] = ((row * self.texels - dy_px / self.texel_px).astype(np.float32)[:, None] + rows)[:, :, None]
        x, y = (part.reshape(len(tiles), -1) for part in (across, down))
        return np.asarray(cv2.remap(self._old, x, y, cv2.INTER_LINEAR, None, cv2.BORDER_REPLICATE), np.uint8)

    def rest(self, patches: Luma) -> tuple[Floats, Floats]:
        """Distance of patches [rows · cols, k] from where they are now, in pixels, float32 [rows, cols] each: one
        step of Lucas and Kanade's registration (1981), for what is within a texel."""
        change = cv2.subtract(self._seen, patches, dtype=cv2.CV_32F)
        by, bx = (self._means(slope, change) * np.float32(self.texel_px / 8) for slope in self._slopes)
        yy, xx, xy = self._products
        determinant = yy * xx - xy * xy + np.float32(LEAST_SLOPE) * (yy + xx) + np.float32(LEAST_SLOPE**2)
        least = np.float32(LEAST_SLOPE)
        steps = np.stack([xy * bx - (xx + least) * by, xy * by - (yy + least) * bx]) / determinant
        dy, dx = np.clip(steps, -REST_TEXELS * self.texel_px, REST_TEXELS * self.texel_px)
        return dy, dx

    def _explanation(self, dy_px: Floats, dx_px: Floats, patches: Luma) -> MovedTiles:
        return MovedTiles(dy_px, dx_px, self._row_means(cv2.absdiff(self._seen, patches)), patches)

    def _patches(self, picture: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The compared texels of the tiles of a picture [rows · texels, cols · texels]: [rows · cols, k] in its own
        dtype."""
        rows = tiled(picture.view(np.uint8), self.texels, self.texels * picture.itemsize)
        tiles = np.ascontiguousarray(rows[:, self._row_step // 2 :: self._row_step].swapaxes(1, 2))
        return tiles.view(picture.dtype).reshape(self.shape[0] * self.shape[1], -1)

    def _means(self, one: Floats, other: Floats) -> Floats:
        """Mean product of the texels of each tile: float32 [rows, cols] of two [rows · cols, k]."""
        sums = np.einsum("ij,ij->i", one, other)
        return np.asarray(sums * np.float32(1 / one.shape[1]), np.float32).reshape(self.shape)

    def _row_means(self, values: Luma) -> Floats:
        """Mean of the texels of each tile: float32 [rows, cols] of uint8 [rows · cols, k]."""
        sums = cv2.reduce(values, 1, cv2.REDUCE_SUM, dtype=cv2.CV_32S)
        return np.asarray(sums * np.float32(1 / values.shape[1]), np.float32).reshape(self.shape)
