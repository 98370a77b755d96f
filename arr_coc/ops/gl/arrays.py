"""Several pictures of one size in one texture: frames, or cameras side by side."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.errors import ShapeError, StoreError
from arr_coc.ops.gl.device import open_device
from arr_coc.ops.gl.layout import Job
from arr_coc.ops.gl.plan import plan_upload
from arr_coc.ops.gl.reading import gather, read_back
from arr_coc.ops.gl.texture import TileTexture
from arr_coc.ops.planes import Plane
from arr_coc.ops.rectangles import cover
from arr_coc.types import LEVELS, TileGrid

Mask = npt.NDArray[np.bool_]


class GlTextureArray:
    """A texture of many layers, each with six levels; one pass makes the mipmaps of all that changed.

    May be used from any number of threads, one call at a time; a layer that was never written is black.
    """

    def __init__(self, layers: int, height_px: int, width_px: int, cuda_device: int | None = None) -> None:
        """`cuda_device`: the number of the CUDA device to draw on.

        Raises ShapeError below one layer or pixel, BackendMissing where nothing here gives OpenGL 4.5 or takes so
        large a texture, DeviceLost where its memory does not suffice.
        """
        if min(layers, height_px, width_px) < 1:
            raise ShapeError(f"a texture array needs a layer and a pixel, got {layers} of {width_px}x{height_px}")
        self.layers = layers
        self.grid = TileGrid.of(height_px, width_px)
        self.device = open_device(cuda_device)
        self._texture = TileTexture(self.device, layers, *self.grid.shape, frames_in_flight=1)
        self._alone = threading.Lock()
        self._closed = False

    def update(self, images: Plane, layers: Sequence[int] | None = None, dirty: Mask | None = None) -> None:
        """Brings layers up to date with `images` uint8 [n, H, W, 3], padded here to whole tiles by their edges.

        `layers` names n of them, without it they are the first n. `dirty` bool [n, rows, cols] says which tiles
        changed, without it all did. Raises ShapeError for other shapes or layers, StoreError once closed, DeviceLost
        where the device gave up.
        """
        targets = list(range(len(images))) if layers is None else [int(layer) for layer in layers]
        self._check(images, targets, dirty)
        jobs = []
        for index, layer in enumerate(targets):
            rectangles = ((0, 0, *self.grid.shape),) if dirty is None else cover(dirty[index])
            if rectangles:
                jobs.append(Job(layer, self._padded(images[index]), plan_upload(rectangles, self.grid.shape)))
        with self._alone:
            self._check_open()
            if jobs:
                self._texture.paint(jobs)

    def read(self, layer: int, level: int) -> Plane:
        """One level of a layer: uint8 [rows * 32 >> level, cols * 32 >> level, 3].

        Raises ShapeError where layer or level do not exist, StoreError once closed, DeviceLost where the device gave
        up.
        """
        if not (0 <= level < LEVELS and 0 <= layer < self.layers):
            raise ShapeError(f"there are {self.layers} layers of {LEVELS} levels, got layer {layer}, level {level}")
        out = np.empty((self.grid.padded_height_px >> level, self.grid.padded_width_px >> level, 3), np.uint8)
        with self._alone:
            self._check_open()
            read_back(self._texture, layer, [(0, 0, *self.grid.shape)], {level: out})
        return out

    def gather(self, regions: npt.NDArray[np.integer]) -> Plane:
        """The pixels of regions [K, 4] (layer, level, row, col): uint8 [K, 3, 32, 32], RGB, edge-clamped.

        Raises ShapeError where a region does not exist, StoreError once closed, DeviceLost where the device gave up.
        """
        if regions.ndim != 2 or regions.shape[1] != 4 or not np.issubdtype(regions.dtype, np.integer):
            raise ShapeError(
                f"regions are integers [K, 4] (layer, level, row, col), got {regions.dtype} {regions.shape}"
            )
        layer, level, row, col = regions.astype(np.int64).T
        inside = (regions >= 0).all(axis=1) & (layer < self.layers) & (level < LEVELS)
        inside &= ((row << level) < self.grid.rows) & ((col << level) < self.grid.cols)
        if not inside.all():
            first = regions[np.flatnonzero(~inside)[0]].tolist()
            raise ShapeError(
                f"region {first} (layer, level, row, col) lies outside {self.layers} layers of {self.grid.shape} tiles"
            )
        with self._alone:
            self._check_open()
            return gather(self._texture, np.stack((level, row, col, layer), axis=1))

    def close(self) -> None:
        """Frees the device's memory. May be called twice."""
        with self._alone:
            if not self._closed:
                self._closed = True
                self._texture.release()
                self.device.clear()

    def _padded(self, image: Plane) -> Plane:
        below = self.grid.padded_height_px - self.grid.height_px
        right = self.grid.padded_width_px - self.grid.width_px
        if not below and not right:
            return image
        return cv2.copyMakeBorder(image, 0, below, 0, right, cv2.BORDER_REPLICATE)

    def _check(self, images: Plane, targets: list[int], dirty: Mask | None) -> None:
        wanted = (len(targets), self.grid.height_px, self.grid.width_px, 3)
        if images.dtype != np.uint8 or images.shape != wanted:
            raise ShapeError(f"images are uint8 {wanted}, got {images.dtype} {images.shape}")
        if len(set(targets)) < len(targets) or not all(0 <= layer < self.layers for layer in targets):
            raise ShapeError(f"layers are different ones of 0 to {self.layers - 1}, got {targets}")
        if dirty is not None and (dirty.dtype != np.bool_ or dirty.shape != (len(targets), *self.grid.shape)):
            raise ShapeError(f"dirty is bool {(len(targets), *self.grid.shape)}, got {dirty.dtype} {dirty.shape}")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the texture array is closed")
