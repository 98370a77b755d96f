"""A texture of OpenGL that CUDA reads and writes: registered once, and mapped for as long as nothing draws from it.

While CUDA has a texture mapped, OpenGL must not touch it, and nothing limits how long that may be (CUDA Driver API,
"Graphics Interoperability"). So frames are written by CUDA, and the texture is unmapped only for `drawing`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from arr_coc.backends.cuda.device import CudaDevice, call, device_at
from arr_coc.backends.cuda.memory import StreamOrder, TextureHandles
from arr_coc.backends.cuda.store import CudaStore
from arr_coc.backends.gl.device import GlDevice, open_device
from arr_coc.backends.gl.texture import TileTexture
from arr_coc.errors import BackendMissing, StoreError
from arr_coc.texture.store.base import DrawnTexture
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.types import TileGrid

GL_TEXTURE_2D = 0x0DE1
REGISTERED = 4
"""CU_GRAPHICS_REGISTER_FLAGS_SURFACE_LDST of cuda.h: surfaces may write the texture."""


class MappedTexture:
    """Texture of OpenGL as CUDA sees it, in any thread. Mapping gives each thread a context of OpenGL.

    `maps` counts the times that it was mapped.
    """

    def __init__(self, device: CudaDevice, texture: TileTexture, grid: TileGrid, order: StreamOrder) -> None:
        """In the current context. Raises DeviceLost if the driver does not register the texture."""
        self._device = device
        self._texture = texture
        self._grid = grid
        self._order = order
        self._lock = threading.RLock()
        self._views = ExitStack()
        self._handles: TextureHandles | None = None
        self._is_drawing = False
        self.maps = 0
        with texture.device.current():
            self._resource = call("cuGraphicsGLRegisterImage", texture.name, GL_TEXTURE_2D, REGISTERED)

    @contextmanager
    def mapped(self) -> Iterator[TextureHandles]:
        """The texture for CUDA commands that are given inside; mapped if it is not.

        Raises DeviceLost if the device failed, StoreError inside `unmapped` in the same thread.
        """
        with self._lock:
            if self._is_drawing:
                raise StoreError("OpenGL draws from the texture in this thread; read it with CUDA afterwards")
            yield self._handles or self._map()

    @contextmanager
    def unmapped(self) -> Iterator[TileTexture]:
        """The texture for OpenGL's commands that are given inside, in any context that shares it; CUDA waits."""
        with self._lock:
            if self._handles is not None:
                with self._texture.device.current(), self._device.current() as stream:
                    self._order.before_write(stream)
                    call("cuStreamSynchronize", stream)
                    self._give_back(stream)
            self._is_drawing = True
            try:
                yield self._texture
            finally:
                self._is_drawing = False

    def close(self) -> None:
        """Unmap and unregister the texture; the device has done what it was asked for.

        If OpenGL lost its context, its texture is gone, and only what CUDA made of it is destroyed.
        """
        with (
            self._lock,
            suppress(StoreError),
            self._device.current() as stream,
            self._views,
            self._texture.device.current(),
        ):
            self._give_back(stream)
            call("cuGraphicsUnregisterResource", self._resource)

    def _map(self) -> TextureHandles:
        """Map the texture; work of all streams comes after OpenGL's commands up to now."""
        with self._texture.device.current(), self._device.current() as stream:
            self._texture.order_draws()
            call("cuGraphicsMapResources", 1, self._resource, stream)
            try:
                array: Any = call("cuGraphicsResourceGetMappedMipmappedArray", self._resource)
                self._handles = TextureHandles(array, self._grid, self._views)
            except StoreError:
                self._views.close()
                call("cuGraphicsUnmapResources", 1, self._resource, stream)
                raise
            self._order.after_write(stream)
        self.maps += 1
        return self._handles

    def _give_back(self, stream: int) -> None:
        if self._handles is not None:
            self._handles = None
            self._views.close()
            call("cuGraphicsUnmapResources", 1, self._resource, stream)


class GlCudaStore(CudaStore):
    """The CUDA store in a texture of OpenGL, to be drawn from by programs on the same GPU."""

    backend = "gl"

    def __init__(self, fmt: PlaneFormat, thresholds: Thresholds, lease_timeout_ms: int, cuda_device: int) -> None:
        """`cuda_device`: number of the CUDA device, which OpenGL has to draw on.

        Raises BackendMissing if it cannot, or CUDA is missing; DeviceLost if memory does not suffice.
        """
        self.device = _shared_device(cuda_device)
        super().__init__(fmt, thresholds, lease_timeout_ms, cuda_device)

    @property
    def hardware(self) -> str:
        major, minor = self.device.version
        return f"OpenGL {major}.{minor}, {self.device.renderer}, written by CUDA device {self._device.index}"

    @property
    def maps(self) -> int:
        """Number of times that CUDA has mapped the texture: one, and one more for each `drawing`."""
        return self._mapped.maps

    @contextmanager
    def drawing(self, timeout_ms: int | None = None) -> Iterator[DrawnTexture]:
        """As of any store of OpenGL; CUDA's readers and the writer wait meanwhile."""
        self.device.check_context()
        with super().lease(timeout_ms) as view, self._mapped.unmapped() as texture, texture.drawing():
            yield DrawnTexture(texture.name, view.stamp, view.grid)

    def _make_texture(self, resources: ExitStack) -> MappedTexture:
        texture = TileTexture(self.device, *self.grid.shape, uploads=False)
        resources.callback(_release, texture)
        self._mapped = MappedTexture(self._device, texture, self.grid, self._order)
        resources.callback(self._mapped.close)
        return self._mapped


def _release(texture: TileTexture) -> None:
    """Free a texture. What cannot be freed went with the device."""
    texture.release()
    with suppress(StoreError):
        texture.device.clear()


def interop_problem(cuda_device: int) -> str | None:
    """Return why CUDA device `cuda_device` cannot share textures with OpenGL here; None if it can."""
    try:
        _shared_device(cuda_device)
    except StoreError as error:
        return " ".join(str(error).split())
    return None


EVERY_DEVICE = 1
MOST_DEVICES = 16
"""CU_GL_DEVICE_LIST_ALL of cudaGL.h, and how many devices may draw for one context."""


def _shared_device(cuda_device: int) -> GlDevice:
    """OpenGL on CUDA device `cuda_device`. Raises BackendMissing if there is none.

    EGL numbers devices for all processes, CUDA for this one ($CUDA_VISIBLE_DEVICES): CUDA is asked where OpenGL draws.
    """
    device = device_at(cuda_device)
    gl = open_device(cuda_device)
    with gl.current(), device.current():
        count, devices = call("cuGLGetDevices", MOST_DEVICES, EVERY_DEVICE)
        gl_devices = [int(number) for number in list(devices)[: int(count)]]
    if int(call("cuDeviceGet", cuda_device)) not in gl_devices:
        raise BackendMissing(
            f"OpenGL ({gl.name}) draws on CUDA device {', '.join(map(str, gl_devices)) or 'none'}, not on {cuda_device}"
        )
    return gl
