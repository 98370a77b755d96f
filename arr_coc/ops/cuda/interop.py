"""Textures and frames that are on the device already: GL textures written by CUDA, frames decoded there.

Mapping takes milliseconds by reports, and nothing limits how long a texture stays mapped, but OpenGL must not touch it
meanwhile (CUDA Driver API, "Graphics Interoperability"). So the store's texture is mapped once, for good, and whoever
wants to draw gets a second one, into which level 0 is copied while that is mapped.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.errors import ShapeError
from arr_coc.ops.cuda.device import CudaDevice, bindings, call
from arr_coc.ops.cuda.memory import MipTexture, StagingBuffer, StreamOrder
from arr_coc.ops.store.difference import Thresholds
from arr_coc.ops.store.planes import PlaneFormat
from arr_coc.types import LEVELS, Colour, TileGrid

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


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DeviceFrame:
    """A frame uint8 on the device as kernels take it: address, steps to the next row, column and channel, and size."""

    tensor: torch.Tensor
    arguments: tuple[int, int, int, int, int, int]

    @classmethod
    def of(cls, tensor: torch.Tensor, fmt: PlaneFormat, device: CudaDevice) -> DeviceFrame:
        """`tensor` uint8 [H, W, 3] or [3, H, W], with any strides, for a store of format `fmt`.

        Raises ShapeError where it is something else, of another size, or elsewhere.
        """
        size = (fmt.height_px, fmt.width_px)
        shape = tuple(tensor.shape)
        if fmt.layout != "rgb":
            raise ShapeError(f"frames as tensors are RGB, and the store was opened for layout {fmt.layout}")
        if tensor.dtype != torch.uint8 or shape not in ((*size, 3), (3, *size)):
            raise ShapeError(
                f"a frame is uint8 {[*size, 3]} or {[3, *size]} for this store, got {tensor.dtype} {list(shape)}; "
                "open another store for frames of another size"
            )
        device.check(tensor, "the frame")
        row, col, channel = tensor.stride() if shape == (*size, 3) else (*tensor.stride()[1:], tensor.stride()[0])
        return cls(tensor, (tensor.data_ptr(), row, col, channel, *size))


class FrameUploader:
    """Finds out which tiles of a frame differ from the texture, and writes those."""

    def __init__(
        self, device: CudaDevice, texture: MipTexture, grid: TileGrid, order: StreamOrder, owned: ExitStack
    ) -> None:
        self._device, self._texture, self._grid, self._order = device, texture, grid, order
        self._dirty = StagingBuffer(device, grid.tiles, owned)

    def compare(self, frame: DeviceFrame, thresholds: Thresholds) -> Mask:
        """Return the tiles that differ, bool [rows, cols]: the one thing that comes to the host."""
        slot, texture = self._dirty, self._texture
        with self._device.current() as stream:
            self._order.before_read(stream)
            limits = (thresholds.mean, thresholds.largest)
            self._launch("compare_frame", stream, frame, texture.handle, *limits, slot.device)
            slot.download(0, self._grid.tiles, stream)
            slot.mark(stream)
            slot.wait()
        return slot.host.reshape(self._grid.shape).astype(bool)

    def write(self, frame: DeviceFrame, dirty: Mask) -> None:
        """Takes the dirty tiles, on all levels."""
        slot = self._dirty
        with self._device.current() as stream:
            slot.wait()
            self._order.before_write(stream)
            slot.host[:] = dirty.ravel()
            slot.upload(self._grid.tiles, stream)
            self._launch("upload_frame", stream, frame, slot.device, *self._texture.surfaces)
            slot.mark(stream)
            self._order.after_write(stream)

    def _launch(self, name: str, stream: int, frame: DeviceFrame, *values: float) -> None:
        rows, cols = self._grid.shape
        self._device.kernels.launch(name, (cols, rows), stream, *frame.arguments, *values)


def format_of(frame: torch.Tensor) -> PlaneFormat:
    """The format of a store for frames as tensors: uint8 [H, W, 3] or [3, H, W] (a width of 3 is taken for channels).

    Raises ShapeError where the tensor is neither.
    """
    shape = tuple(frame.shape)
    if frame.dtype != torch.uint8 or len(shape) != 3 or 3 not in (shape[0], shape[2]) or 0 in shape:
        raise ShapeError(f"a frame is uint8 [H, W, 3] or [3, H, W], got {frame.dtype} {list(shape)}")
    height, width = shape[:2] if shape[2] == 3 else shape[1:]
    return PlaneFormat("rgb", height, width, (1, 1), Colour())
