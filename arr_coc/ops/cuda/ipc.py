"""Device memory that two processes share by CUDA IPC handles (CUDA Driver API, "Memory Management": cuIpc*).

The memory is the driver's own, not torch's: a handle names a whole allocation, and torch's hold many tensors each.
"""

from __future__ import annotations

import ctypes

import torch

from arr_coc.errors import BackendMissing, DeviceLost, ShapeError
from arr_coc.ops.cuda.device import CudaDevice, bindings, call, device_by_uuid, find_device
from arr_coc.types import TILE_PX

HANDLE_BYTES = 64
"""CU_IPC_HANDLE_SIZE of cuda.h."""

LAZY_PEER_ACCESS = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS of cuda.h."""

REGION_BYTES = 3 * TILE_PX * TILE_PX

FIRST_REGIONS = 512
"""Regions in the first allocation: more than the tokens of a usual budget. It is doubled if it does not suffice."""


class SharedMemory:
    """Memory on the texture's device that another process may open by `handle`; `gpu` is the UUID of the device.

    `handle` is another one once more room was needed. Used by one thread.
    """

    def __init__(self) -> None:
        """Raise BackendMissing or DeviceLost if the device has no such memory."""
        self._device = find_device()
        self.gpu = self._device.uuid
        self._address = 0
        self._make(FIRST_REGIONS)

    def write(self, pixels: torch.Tensor) -> None:
        """Copy pixels uint8 [K, 3, 32, 32]; the copy is complete on return.

        Raises ShapeError if they have another shape or device, DeviceLost.
        """
        self._device.check(pixels, "the tensor of pixels")
        if pixels.dtype != torch.uint8 or tuple(pixels.shape[1:]) != (3, TILE_PX, TILE_PX):
            raise ShapeError(f"pixels are uint8 [K, 3, {TILE_PX}, {TILE_PX}], got {pixels.dtype} {list(pixels.shape)}")
        if len(pixels) > self._regions:
            self.close()
            self._make(max(len(pixels), 2 * self._regions))
        if not len(pixels):
            return
        whole = pixels.contiguous()
        with self._device.current() as stream:
            call("cuMemcpyDtoDAsync", self._address, whole.data_ptr(), len(whole) * REGION_BYTES, stream)
            call("cuStreamSynchronize", stream)

    def close(self) -> None:
        """Free the memory; a process that has opened it must not read it any more. May be called twice."""
        if self._address:
            with self._device.current():
                call("cuMemFree", self._address)
            self._address = 0

    def _make(self, regions: int) -> None:
        with self._device.current():
            address = int(call("cuMemAlloc", regions * REGION_BYTES))
            try:
                self.handle = ctypes.string_at(call("cuIpcGetMemHandle", address).getPtr(), HANDLE_BYTES)
            except (BackendMissing, DeviceLost):
                call("cuMemFree", address)
                raise
        self._address, self._regions = address, regions


class OpenedMemory:
    """Memory of another process, on a device of this one."""

    def __init__(self, handle: bytes, gpu: bytes) -> None:
        """`handle` and `gpu` are those of a `SharedMemory`.

        Raises BackendMissing if the device is not this process's, or the driver does not open its memory.
        """
        self.handle = handle
        device = device_by_uuid(gpu)
        if device is None:
            raise BackendMissing("the texture is on a GPU that the model's process does not see")
        self._device: CudaDevice = device
        named = bindings().CUipcMemHandle()
        ctypes.memmove(named.getPtr(), handle, HANDLE_BYTES)
        with device.current():
            try:
                self._address = int(call("cuIpcOpenMemHandle", named, LAZY_PEER_ACCESS))
                self._bytes = int(call("cuMemGetAddressRange", self._address)[1])
            except DeviceLost as error:
                raise BackendMissing(f"the driver does not share memory between processes ({error})") from error

    def read(self, count: int) -> torch.Tensor:
        """A copy of the first `count` regions' pixels: uint8 [count, 3, 32, 32], there when this returns.

        Raises ShapeError if the memory is smaller, DeviceLost.
        """
        room = self._bytes // REGION_BYTES
        if count > room:
            raise ShapeError(f"the shared memory has room for {room} regions, not for {count}")
        out = self._device.empty((count, 3, TILE_PX, TILE_PX), torch.uint8)
        if count:
            with self._device.current() as stream:
                call("cuMemcpyDtoDAsync", out.data_ptr(), self._address, count * REGION_BYTES, stream)
                call("cuStreamSynchronize", stream)
        return out

    def close(self) -> None:
        """Close this process's mapping of the memory."""
        with self._device.current():
            call("cuIpcCloseMemHandle", self._address)
