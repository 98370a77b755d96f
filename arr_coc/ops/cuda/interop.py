"""Textures of OpenGL that CUDA reads: registered once, mapped between writes.

While CUDA has a texture mapped, OpenGL must not touch it, and nothing limits how long that may be (CUDA Driver API,
"Graphics Interoperability"). So the first reader after a write maps it, and it stays mapped until OpenGL writes the
next frame, or another thread draws from it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from arr_coc.errors import BackendMissing, StoreError
from arr_coc.ops.cuda.device import CudaDevice, call, device_at
from arr_coc.ops.cuda.memory import SampledTexture, StreamOrder
from arr_coc.ops.cuda.view import ChannelKernels, CudaTexels, CudaView
from arr_coc.ops.gl.store import GlStore, GlTexels
from arr_coc.ops.gl.texture import TileTexture
from arr_coc.ops.store.planes import Mask, Plane, PlaneFormat, Thresholds
from arr_coc.types import FramePlanes, TileGrid

GL_TEXTURE_2D = 0x0DE1
READ_ONLY = 1
"""CU_GRAPHICS_REGISTER_FLAGS_READ_ONLY of cuda.h."""


class MappedTexture:
    """A tiled texture of OpenGL as CUDA reads it, in any thread; mapping gives each a context of OpenGL."""

    def __init__(self, device: CudaDevice, texture: TileTexture, grid: TileGrid) -> None:
        """Raise DeviceLost if the driver does not register the texture."""
        self._device, self._texture, self._grid = device, texture, grid
        self._lock = threading.RLock()
        self._owned, self._views = ExitStack(), ExitStack()
        self._seen: SampledTexture | None = None
        self._drawn = False
        with texture.device.current(), device.current():
            self._resource = call("cuGraphicsGLRegisterImage", texture.name, GL_TEXTURE_2D, READ_ONLY)
            self.order = StreamOrder(self._owned)

    @contextmanager
    def reading(self) -> Iterator[SampledTexture]:
        """The texture for CUDA commands issued inside; mapped if it is not yet.

        Raises DeviceLost if the device failed.
        """
        with self._lock:
            if self._drawn:
                raise StoreError("OpenGL draws from the texture in this thread; read it with CUDA afterwards")
            if self._seen is None:
                self._map()
            assert self._seen is not None
            yield self._seen

    @contextmanager
    def unmapped(self) -> Iterator[None]:
        """The texture for OpenGL's commands that are given inside, in any context that shares it; CUDA waits."""
        with self._lock:
            self._unmap()
            self._drawn = True
            try:
                yield
            finally:
                self._drawn = False

    def close(self) -> None:
        """Return the texture to OpenGL for good. May be called twice."""
        with self._lock, suppress(StoreError), self._texture.device.current(), self._device.current():
            self._unmap()
            resource, self._resource = self._resource, None
            if resource is not None:
                call("cuCtxSynchronize")
                call("cuGraphicsUnregisterResource", resource)
            self._owned.close()

    def _map(self) -> None:
        """Order later work of all streams after OpenGL's commands up to now."""
        with self._texture.device.current(), self._device.current() as stream:
            self._texture.order()
            call("cuGraphicsMapResources", 1, self._resource, stream)
            try:
                array: Any = call("cuGraphicsResourceGetMappedMipmappedArray", self._resource)
                self._seen = SampledTexture(array, self._grid, self._views)
            except StoreError:
                self._views.close()
                call("cuGraphicsUnmapResources", 1, self._resource, stream)
                raise
            self.order.after_write(stream)

    def _unmap(self) -> None:
        """Once the device has read what it was asked for."""
        if self._seen is None:
            return
        self._seen = None
        with self._texture.device.current(), self._device.current() as stream:
            self.order.before_write(stream)
            call("cuStreamSynchronize", stream)
            self._views.close()
            call("cuGraphicsUnmapResources", 1, self._resource, stream)


class _LevelReader:
    """Levels for the host, read back by OpenGL."""

    def __init__(self, mapped: MappedTexture, texels: GlTexels) -> None:
        self._mapped, self._texels = mapped, texels

    def read(self, level: int) -> Plane:
        if level == 0:
            return self._texels.read(0)  # the host's own
        with self._mapped.unmapped():
            return self._texels.read(level)


class GlCudaStore(GlStore):
    """A texture of OpenGL that readers on the same GPU see through CUDA: nothing is read back for them.

    Views are those of the CUDA store. Bytes are the CPU store's.
    """

    def __init__(self, fmt: PlaneFormat, thresholds: Thresholds, lease_timeout_ms: int, cuda_device: int) -> None:
        """`cuda_device`: the number of the CUDA device that reads, which OpenGL has to draw on.

        Raises BackendMissing if it cannot, or CUDA is missing; DeviceLost if memory does not suffice.
        """
        self._cuda = device_at(cuda_device)
        super().__init__(fmt, thresholds, lease_timeout_ms, cuda_device)
        self._mapped = MappedTexture(self._cuda, self._texture, self.grid)
        self._levels = _LevelReader(self._mapped, self._reader)
        with self._cuda.current():
            self._cuda.kernels.load()
            self._channels = ChannelKernels(self._cuda, self.grid)

    @property
    def hardware(self) -> str:
        return f"{super().hardware}, read by CUDA device {self._cuda.index}"

    @contextmanager
    def lease(self, timeout_ms: int | None = None) -> Iterator[CudaView]:
        """As any store's, with a view that also gives what stays on the device."""
        with super().lease(timeout_ms) as view:
            texels = CudaTexels(self._cuda, self._mapped, self._mapped.order, self._levels, self._channels)
            own = CudaView(view.stamp, view.grid, view.versions, texels)
            try:
                yield own
            finally:
                own.release()

    @contextmanager
    def drawing(self, timeout_ms: int | None = None) -> Iterator[int]:
        """As of any OpenGL store; CUDA's readers wait meanwhile."""
        with super().drawing(timeout_ms) as name, self._mapped.unmapped():
            yield name

    @contextmanager
    def texels(self, timeout_ms: int | None = None) -> Iterator[GlTexels]:
        with super().texels(timeout_ms) as texels, self._mapped.unmapped():
            yield texels

    def _update_levels(self, planes: FramePlanes, dirty: Mask) -> None:
        with self._mapped.unmapped():
            super()._update_levels(planes, dirty)

    def _free(self) -> None:
        self._mapped.close()
        super()._free()


def interop_problem(cuda_device: int) -> str | None:
    """Return why CUDA device `cuda_device` cannot read textures of OpenGL here; None if it can."""
    from arr_coc.ops.gl.device import open_device

    try:
        device_at(cuda_device)
        open_device(cuda=cuda_device)
    except BackendMissing as error:
        return " ".join(str(error).split())
    return None
