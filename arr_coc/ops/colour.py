"""Y'CbCr to RGB, 8 bits, by the stream's matrix and range.

Coefficients follow ITU-R BT.601-7, BT.709-6, BT.2020-2, SMPTE 240M and FCC 73.682 through Kr and Kb. Chroma is
replicated, never interpolated: so a tile's texels depend on that tile's samples alone, and the result is that of
swscale's unscaled converters (which serve even heights).
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.planes import Plane, PlaneFormat, Rectangle
from arr_coc.types import TILE_PX, Colour, Matrix

KR_KB: dict[Matrix, tuple[float, float]] = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
    "smpte240m": (0.212, 0.087),
    "fcc": (0.30, 0.11),
}

TRUNCATION = 0.75
"""swscale's converters truncate intermediate results, up to 3 below the exact value; this keeps the two within 2/255.
"""

WIDENED: dict[int, tuple[type[np.uint16 | np.uint32], int]] = {2: (np.uint16, 0x0101), 4: (np.uint32, 0x01010101)}
"""Integers that hold a sample 2 or 4 times, and the factor that puts it there."""

BAND_PX = 1 << 18
"""Texels converted at a time, so that the intermediate picture (3 bytes each) stays in a core's cache."""

CACHED_OFFSET = 16
"""Bytes past a multiple of 64 at which scratch memory begins: cv2 writes past the cache where its target is aligned to
32 bytes, and the next step reads it at once."""


def rgb_matrix(colour: Colour) -> npt.NDArray[np.float64]:
    """float64 [3, 4]: (y, u, v, 1) of 0..255 to (r, g, b) of 0..255."""
    kr, kb = KR_KB[colour.matrix]
    kg = 1 - kr - kb
    scale = (1.0, 1.0, 1.0) if colour.full_range else (255 / 219, 255 / 224, 255 / 224)
    linear = np.array(
        [
            [1, 0, 2 * (1 - kr)],
            [1, -2 * kb * (1 - kb) / kg, -2 * kr * (1 - kr) / kg],
            [1, 2 * (1 - kb), 0],
        ]
    ) * np.array(scale)
    black = np.array([0 if colour.full_range else 16, 128, 128])
    return np.column_stack((linear, -linear @ black - TRUNCATION))


class ColourConverter:
    """Converts rectangles of padded planes to RGB; scratch memory is made once."""

    def __init__(self, fmt: PlaneFormat) -> None:
        self._layout = fmt.layout
        self._sy, self._sx = fmt.subsampling
        if fmt.layout == "yuv":
            self._matrix = rgb_matrix(fmt.colour)
            size = max(BAND_PX, TILE_PX * fmt.grid.padded_width_px)
            self._u, self._v = (_scratch(size) for _ in range(2))
            self._yuv, self._rgb = (_scratch(size * 3) for _ in range(2))

    def convert(self, padded: tuple[Plane, ...], rectangle: Rectangle, level0: Plane) -> None:
        """Writes the rectangle's texels into `level0` uint8 [H, W, 3]."""
        row0, col0, row1, col1 = (edge * TILE_PX for edge in rectangle)
        if self._layout == "gray":
            area = padded[0][row0:row1, col0:col1]
            level0[row0:row1, col0:col1] = area[..., None]
        elif self._layout == "yuv":
            step = max(TILE_PX, BAND_PX // (col1 - col0) // TILE_PX * TILE_PX)
            for top in range(row0, row1, step):
                bottom = min(top + step, row1)
                self._convert_band(padded, (top, col0, bottom, col1), level0[top:bottom, col0:col1])

    def _convert_band(self, padded: tuple[Plane, ...], area: Rectangle, out: Plane) -> None:
        top, left, bottom, right = area
        height, width = bottom - top, right - left
        luma = padded[0][top:bottom, left:right]
        u, v = (
            self._widened(plane[top // self._sy : bottom // self._sy, left // self._sx : right // self._sx], scratch)
            for plane, scratch in zip(padded[1:], (self._u, self._v), strict=True)
        )
        yuv = self._yuv[: height * width * 3].reshape(height, width, 3)
        for phase in range(self._sy):
            cv2.merge((luma[phase :: self._sy], u, v), dst=yuv[phase :: self._sy])
        if out.flags.c_contiguous:
            cv2.transform(yuv, self._matrix, dst=out)
            return
        # cv2.transform runs twice as fast on contiguous rows, more than the copy costs.
        rgb = self._rgb[: height * width * 3].reshape(height, width, 3)
        cv2.transform(yuv, self._matrix, dst=rgb)
        out[:] = rgb

    def _widened(self, plane: Plane, scratch: Plane) -> Plane:
        """Each sample repeated `sx` times along its row, by one multiplication."""
        height, width = plane.shape
        if self._sx == 1:
            return plane
        wide, ones = WIDENED[self._sx]
        out = scratch[: height * width * self._sx].view(wide).reshape(height, width)
        np.multiply(plane, ones, out=out, dtype=wide)
        return out.view(np.uint8)


def _scratch(size: int) -> Plane:
    memory = np.empty(size + 64 + CACHED_OFFSET, np.uint8)
    start = -memory.ctypes.data % 64 + CACHED_OFFSET
    return memory[start : start + size]
