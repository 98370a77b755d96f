"""Textures of OpenGL that CUDA writes, on the GPU that both run on.

Mapping takes milliseconds by reports, and nothing limits how long a texture stays mapped, but OpenGL must not touch it
meanwhile (CUDA Driver API, "Graphics Interoperability"). So the store's texture is mapped once, for good, and whoever
wants to draw gets a second one, into which level 0 is copied while that is mapped.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from arr_coc.ops.cuda.device import CudaDevice, bindings, call
from arr_coc.ops.cuda.memory import MipTexture, StreamOrder
from arr_coc.types import LEVELS, TileGrid

if TYPE_CHECKING:
    from arr_coc.ops.gl.device import GlDevice

GL_TEXTURE_2D = 0x0DE1
GL_RGBA8 = 0x8058
SURFACE_LDST, WRITE_DISCARD = 4, 2
"""CU_GRAPHICS_REGISTER_FLAGS of cuda.h."""

RGBA_BYTES = 4


class SharedTextures:
    """A GL texture of six levels that stays mapped as `array`, and a GL texture `display` of one level for drawing.

    Both are RGBA8 and belong to the context group of `gl`, the GL device that is the same GPU.
    """

    def __init__(self, device: CudaDevice, gl: GlDevice, grid: TileGrid, owned: ExitStack) -> None:
        """In the CUDA device's context. Raises DeviceLost where the GPU has no memory for them."""
        self.gl = gl
        self._size = (grid.padded_width_px, grid.padded_height_px)
        self._showing = threading.Lock()
        with gl.current():
            self._name = self._make(LEVELS, owned)
            self.display = self._make(1, owned)
            mapped = self._register(self._name, SURFACE_LDST, owned)
            self._display = self._register(self.display, WRITE_DISCARD, owned)
            stream = device.stream()
            call("cuGraphicsMapResources", 1, mapped, stream)
            owned.callback(self._in_gl, "cuGraphicsUnmapResources", 1, mapped, 0)
            self.array = call("cuGraphicsResourceGetMappedMipmappedArray", mapped)

    def show(self, texture: MipTexture, device: CudaDevice, order: StreamOrder) -> int:
        """Copies level 0 into the display texture, and gives its GL name, to be drawn with a context of `gl`."""
        with self._showing, self.gl.current(), device.current() as stream:
            order.before_read(stream)
            with self._mapped(stream):
                target = call("cuGraphicsSubResourceGetMappedArray", self._display, 0, 0)
                call("cuMemcpy3DAsync", _whole_level(texture.levels[0], target, *self._size), stream)
            order.after_read(stream)
        return self.display

    @contextmanager
    def _mapped(self, stream: int) -> Iterator[None]:
        call("cuGraphicsMapResources", 1, self._display, stream)
        try:
            yield
        finally:
            call("cuGraphicsUnmapResources", 1, self._display, stream)

    def _make(self, levels: int, owned: ExitStack) -> int:
        gl, name = self.gl.library.gl, ctypes.c_uint()
        with self.gl.creating("a texture to share with CUDA"):
            gl.glCreateTextures(GL_TEXTURE_2D, 1, name)
            owned.callback(self.gl.defer_delete, lambda device: device.library.gl.glDeleteTextures(1, name))
            gl.glTextureStorage2D(name.value, levels, GL_RGBA8, *self._size)
        return int(name.value)

    def _register(self, name: int, flags: int, owned: ExitStack) -> Any:
        resource = call("cuGraphicsGLRegisterImage", name, GL_TEXTURE_2D, flags)
        owned.callback(self._in_gl, "cuGraphicsUnregisterResource", resource)
        return resource

    def _in_gl(self, *arguments: Any) -> None:
        with self.gl.current():
            call(*arguments)


def _whole_level(source: Any, target: Any, width_px: int, height_px: int) -> Any:
    cuda = bindings()
    copy = cuda.CUDA_MEMCPY3D()
    copy.srcMemoryType = copy.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_ARRAY
    copy.srcArray, copy.dstArray = source, target
    copy.WidthInBytes, copy.Height, copy.Depth = width_px * RGBA_BYTES, height_px, 1
    return copy
