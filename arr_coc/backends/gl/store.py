"""`GlStore`, the OpenGL store, and its reader."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import numpy.typing as npt

from arr_coc.backends.gl.device import open_device
from arr_coc.backends.gl.kernels import Floats, gather, read_back, sample, sample_along
from arr_coc.backends.gl.texture import TileTexture
from arr_coc.backends.gl.upload import Way, cheaper, plan_upload
from arr_coc.errors import DeviceLost
from arr_coc.texture.packing import cover
from arr_coc.texture.store.base import BaseTextureStore, DrawnTexture
from arr_coc.texture.store.planes import Mask, Plane, PlaneFormat, Thresholds
from arr_coc.texture.store.raster import allocate_levels
from arr_coc.types import FramePlanes


class GlTexels:
    """Level 0 is the host's own copy, from which the texture was filled. Changed parts of the others are read back.

    Any number of threads read, none while the writer writes.
    """

    def __init__(self, texture: TileTexture, level0: Plane) -> None:
        rows, cols = texture.shape
        self._texture = texture
        self._levels = dict(enumerate(allocate_levels(rows, cols)))
        self._levels[0] = level0
        self._stale = np.zeros((rows, cols), bool)
        self._refresh_lock = threading.Lock()

    def mark_stale(self, dirty: Mask) -> None:
        """Record the tiles that the writer painted."""
        self._stale |= dirty

    def read(self, level: int) -> Plane:
        """One level that exists: uint8 [rows * 32 >> level, cols * 32 >> level, 3]."""
        if level:
            with self._refresh_lock:
                if self._stale.any():
                    # All levels at once: one wait for the device costs more than texels that are not needed. 100 tiles
                    # are what reading a rectangle costs beside its tiles: five levels, two calls each.
                    rectangles = cheaper(cover(self._stale), 100)
                    coarse = {level: pixels for level, pixels in self._levels.items() if level}
                    read_back(self._texture, rectangles, coarse)
                    self._stale[:] = False
        return self._levels[level]

    def gather(self, regions: npt.NDArray[np.int64]) -> Plane:
        """Return the pixels of regions [K, 3] (shape, row, col) that exist: uint8 [K, 3, 32, 32], edge-clamped."""
        return gather(self._texture, regions)

    def sample(self, points: Floats) -> npt.NDArray[np.float32]:
        """Return the colours at points; see `arr_coc.backends.gl.kernels.sample`."""
        return sample(self._texture, points)

    def sample_along(self, points: Floats, footprints: Floats, width_px: float = 1.0) -> npt.NDArray[np.float32]:
        """Return the colours averaged along lines; see `arr_coc.backends.gl.kernels.sample_along`."""
        return sample_along(self._texture, points, footprints, width_px)


class GlStore(BaseTextureStore):
    """A texture on a graphics device, with the same bytes as the CPU store's.

    Frames are converted on the host, whose level 0 stays there for its readers. Each thread that writes, or reads more
    than level 0, gets its own context, which ends with the thread. `way` fixes how dirty tiles are uploaded, for
    measuring; `last_way` is that of the last frame.
    """

    backend = "gl"

    def __init__(
        self, fmt: PlaneFormat, thresholds: Thresholds, lease_timeout_ms: int, cuda_device: int | None = None
    ) -> None:
        """`cuda_device`: the number of the CUDA device to draw on.

        Raises BackendMissing if no device supports OpenGL 4.5, DeviceLost if its memory does not suffice.
        """
        self.way: Way | None = None
        self.last_way: Way | None = None
        self.device = open_device(cuda_device)
        super().__init__(fmt, thresholds, lease_timeout_ms, levels=1)
        self._texture = TileTexture(self.device, *fmt.grid.shape)
        self._reader = GlTexels(self._texture, self._host.read(0))

    @property
    def hardware(self) -> str:
        major, minor = self.device.version
        return f"OpenGL {major}.{minor}, {self.device.renderer}{' (software)' if self.device.software else ''}"

    @contextmanager
    def texels(self, timeout_ms: int | None = None) -> Iterator[GlTexels]:
        """Lease the reader of this backend, which also samples. Raises what `lease` raises."""
        with self.lease(timeout_ms):
            yield self._reader

    @contextmanager
    def drawing(self, timeout_ms: int | None = None) -> Iterator[DrawnTexture]:
        self.device.check_context()
        with BaseTextureStore.lease(self, timeout_ms) as view:
            self._texture.order()
            with self._texture.drawing():
                yield DrawnTexture(self._texture.name, view.stamp, view.grid)

    def _update_levels(self, planes: FramePlanes, dirty: Mask) -> None:
        plan = plan_upload(cover(dirty), self.grid.shape, self.way)
        self._host.update(planes, dirty)
        self._texture.paint(self._host.read(0), plan)
        self._reader.mark_stale(dirty)
        self.last_way = plan.way

    def _texels(self) -> GlTexels:
        return self._reader

    def _free(self) -> None:
        self._texture.release()
        with suppress(DeviceLost):  # then the memory went with the device
            self.device.clear()
