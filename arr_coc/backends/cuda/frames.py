"""Frames that are on the device already: compared with the texture there, and taken."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.backends.cuda.device import CudaDevice
from arr_coc.backends.cuda.memory import DeviceTexture, StagingBuffer, StreamOrder
from arr_coc.errors import ShapeError
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.types import Colour, TileGrid

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DeviceFrame:
    """A frame uint8 on the device as kernels take it: address, steps to the next row, column and channel, and size."""

    tensor: torch.Tensor
    arguments: tuple[int, int, int, int, int, int]

    @classmethod
    def of(cls, tensor: torch.Tensor, fmt: PlaneFormat, device: CudaDevice) -> DeviceFrame:
        """Return the frame in a tensor on the device.

        Args:
            tensor: uint8 [H, W, 3] or [3, H, W], RGB, with any strides.
            fmt: Format of the store that takes it.
            device: Device of the store.

        Raises:
            ShapeError: The tensor has another shape, dtype or device.
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
    """Comparison of frames with the texture, and writer of the tiles that differ."""

    def __init__(
        self, device: CudaDevice, texture: DeviceTexture, grid: TileGrid, order: StreamOrder, resources: ExitStack
    ) -> None:
        self._device = device
        self._texture = texture
        self._grid = grid
        self._order = order
        self._dirty = StagingBuffer(device, grid.tiles, resources)

    def compare(self, frame: DeviceFrame, thresholds: Thresholds) -> Mask:
        """Return the tiles that differ, bool [rows, cols]: the one thing that comes to the host."""
        slot = self._dirty
        with self._texture.mapped() as texture, self._device.current() as stream, self._order.reading(stream):
            limits = (thresholds.mean, thresholds.largest)
            self._launch("compare_frame", stream, frame, texture.handle, *limits, slot.device)
            slot.download(0, self._grid.tiles, stream)
            slot.mark(stream)
            slot.wait()
        return slot.host.reshape(self._grid.shape).astype(bool)

    def write(self, frame: DeviceFrame, dirty: Mask) -> None:
        """Write the dirty tiles, on all levels."""
        slot = self._dirty
        with self._texture.mapped() as texture, self._device.current() as stream:
            slot.wait()
            with self._order.writing(stream):
                slot.host[:] = dirty.ravel()
                slot.upload(self._grid.tiles, stream)
                self._launch("upload_frame", stream, frame, slot.device, *texture.surfaces)
                slot.mark(stream)

    def _launch(self, name: str, stream: int, frame: DeviceFrame, *values: float) -> None:
        rows, cols = self._grid.shape
        self._device.kernels.launch(name, (cols, rows), stream, *frame.arguments, *values)


def format_of(frame: torch.Tensor) -> PlaneFormat:
    """Return the format of a store for frames as tensors: uint8 [H, W, 3] or [3, H, W] (a width of 3 is taken for
    channels).

    Raises ShapeError if the tensor is neither.
    """
    shape = tuple(frame.shape)
    if frame.dtype != torch.uint8 or len(shape) != 3 or 3 not in (shape[0], shape[2]) or 0 in shape:
        raise ShapeError(f"a frame is uint8 [H, W, 3] or [3, H, W], got {frame.dtype} {list(shape)}")
    height, width = shape[:2] if shape[2] == 3 else shape[1:]
    return PlaneFormat("rgb", height, width, (1, 1), Colour())
