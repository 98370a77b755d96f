"""`GenerateMipmap`: a texture whose levels the driver of OpenGL makes, to compare the store's with."""

from __future__ import annotations

import ctypes

import cv2
import numpy as np

from arr_coc.backends.gl.device import open_device
from arr_coc.texture.store.planes import Plane
from arr_coc.types import LEVELS, TileGrid


class GenerateMipmap:
    """Levels by the driver: upload of a whole level 0 as RGBA, glGenerateMipmap, and waiting for it."""

    name = "glGenerateMipmap"

    def __init__(self, grid: TileGrid) -> None:
        """Raise BackendMissing if nothing here gives OpenGL."""
        self._device = open_device()
        self._shape = (grid.padded_height_px, grid.padded_width_px)
        self._rgba = np.empty((*self._shape, 4), np.uint8)
        gl = self._device.library.gl
        name = ctypes.c_uint()
        with self._device.current():
            gl.glCreateTextures(gl.GL_TEXTURE_2D, 1, name)
            gl.glTextureStorage2D(name, LEVELS, gl.GL_RGBA8, self._shape[1], self._shape[0])
        self._name = name.value

    def run(self, level0: Plane) -> None:
        """Build every level from `level0` uint8 [H, W, 3], padded, and return when they are complete."""
        gl = self._device.library.gl
        cv2.cvtColor(level0, cv2.COLOR_RGB2RGBA, dst=self._rgba)
        with self._device.current():
            size = (self._shape[1], self._shape[0])
            gl.glTextureSubImage2D(self._name, 0, 0, 0, *size, gl.GL_RGBA, gl.GL_UNSIGNED_BYTE, self._rgba)
            self.generate()

    def generate(self) -> None:
        """Make the levels of what level 0 holds."""
        gl = self._device.library.gl
        with self._device.current():
            gl.glGenerateTextureMipmap(self._name)
            gl.glFinish()

    def levels(self) -> list[Plane]:
        """Return the levels that were built last: uint8 [H >> level, W >> level, 3] each."""
        gl = self._device.library.gl
        levels = []
        with self._device.current():
            for level in range(LEVELS):
                shape = (self._shape[0] >> level, self._shape[1] >> level, 4)
                texels = np.empty(shape, np.uint8)
                gl.glGetTextureImage(self._name, level, gl.GL_RGBA, gl.GL_UNSIGNED_BYTE, texels.nbytes, texels)
                levels.append(texels[..., :3])
        return levels
