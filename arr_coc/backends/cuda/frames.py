"""Frames that are on the device already: compared with the texture there, and taken."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.backends.cuda.device import CudaDevice
from arr_coc.backends.cuda.memory import DeviceTexture, StagingBuffer, StreamOrder
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.texture.store.tensors import channels_last
from arr_coc.types import TileGrid

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
        row, col, channel = channels_last(tensor, fmt).stride()
        device.check(tensor, "the frame")
        return cls(tensor, (tensor.data_ptr(), row, col, channel, fmt.height_px, fmt.width_px))


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
