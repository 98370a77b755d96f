"""Device memory that two processes share by CUDA IPC handles (CUDA Driver API, "Memory Management": cuIpc*).

The memory is the driver's own, not torch's: a handle names a whole allocation, and torch's hold many tensors each. It
is never freed, because freeing what another process still has open has no defined result; the next run uses it again.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass

import torch

from arr_coc.backends.cuda.device import CudaDevice, bindings, call, device_at, device_by_uuid, find_device
from arr_coc.errors import BackendMissing, DeviceLost, ShapeError, StoreError
from arr_coc.types import TILE_PX

HANDLE_BYTES = 64
"""CU_IPC_HANDLE_SIZE of cuda.h."""

LAZY_PEER_ACCESS = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS of cuda.h."""

REGION_BYTES = 3 * TILE_PX * TILE_PX

WHOLE_BYTES = 2 << 20
"""Allocations are multiples of this: a smaller one shares a block with others, which a handle would show too."""

FIRST_REGIONS = WHOLE_BYTES // REGION_BYTES
"""Regions in the first allocation: more than the tokens of a usual budget. It is doubled if it does not suffice."""


@dataclass(frozen=True, slots=True)
class _Export:
    """Memory with room for `regions`, on the device of number `device`, and its handle."""

    device: int
    address: int
    regions: int
    handle: bytes


_spare: list[_Export] = []
_spare_lock = threading.Lock()


class SharedMemory:
    """Memory on the texture's device that another process may open by `handle`; `gpu` is the UUID of the device.

    `handle` is another one once more room was needed. Used by one thread.
    """

    def __init__(self, device: int | None = None) -> None:
        """`device`: number of the device that pixels lie on, by default torch's current one.

        Raise BackendMissing or DeviceLost if the device has no such memory.
        """
        if device is None:
            self._device = find_device()
        else:
            self._device = device_at(device)
        self.gpu = self._device.uuid
        self._export: _Export | None = None
        self._take(FIRST_REGIONS)

    @property
    def handle(self) -> bytes:
        """The memory's handle, for `OpenedMemory` of another process. Raises StoreError once closed."""
        return self._open_export.handle

    @property
    def _open_export(self) -> _Export:
        if self._export is None:
            raise StoreError("the shared memory is closed")
        return self._export

    def write(self, pixels: torch.Tensor) -> None:
        """Copy pixels uint8 [K, 3, 32, 32]; the copy is complete on return.

        Raises ShapeError if they have another shape or device, DeviceLost, StoreError once closed.
        """
        self._device.check(pixels, "the tensor of pixels")
        if pixels.dtype != torch.uint8 or tuple(pixels.shape[1:]) != (3, TILE_PX, TILE_PX):
            raise ShapeError(f"pixels are uint8 [K, 3, {TILE_PX}, {TILE_PX}], got {pixels.dtype} {list(pixels.shape)}")
        if len(pixels) > self._open_export.regions:
            self._take(max(len(pixels), 2 * self._open_export.regions))
        if not len(pixels):
            return
        source = pixels.contiguous()
        with self._device.current() as stream:
            call("cuMemcpyDtoDAsync", self._open_export.address, source.data_ptr(), len(source) * REGION_BYTES, stream)
            call("cuStreamSynchronize", stream)

    def close(self) -> None:
        """Leave the memory to the next one that is made in this process. May be called twice."""
        if self._export is not None:
            with _spare_lock:
                _spare.append(self._export)
            self._export = None

    def _take(self, regions: int) -> None:
        """Take spare memory with room for so many regions, or make some; what was held before is spare then."""
        with _spare_lock:
            candidates = [spare for spare in _spare if spare.device == self._device.index and spare.regions >= regions]
            export = min(candidates, key=lambda spare: spare.regions, default=None)
            if export is not None:
                _spare.remove(export)
        export = export or self._made(regions)
        self.close()
        self._export = export

    def _made(self, regions: int) -> _Export:
        nbytes = -(-regions * REGION_BYTES // WHOLE_BYTES) * WHOLE_BYTES
        with self._device.current():
            address = int(call("cuMemAlloc", nbytes))
            try:
                handle = ctypes.string_at(call("cuIpcGetMemHandle", address).getPtr(), HANDLE_BYTES)
            except (BackendMissing, DeviceLost):
                call("cuMemFree", address)
                raise
        return _Export(self._device.index, address, nbytes // REGION_BYTES, handle)


class OpenedMemory:
    """Memory of another process, on a device of this one."""

    def __init__(self, handle: bytes, gpu: bytes) -> None:
        """`handle` and `gpu` are those of a `SharedMemory`.

        Raises StoreError for another handle, and BackendMissing if the device is not this process's, or the driver does
        not open its memory.
        """
        if len(handle) != HANDLE_BYTES:
            raise StoreError("a place between processes needs a CUDA IPC handle")
        self.handle = handle
        device = device_by_uuid(gpu)
        if device is None:
            raise BackendMissing("the texture is on a GPU that the model's process does not see")
        self._device: CudaDevice = device
        ipc_handle = bindings().CUipcMemHandle()
        ctypes.memmove(ipc_handle.getPtr(), handle, HANDLE_BYTES)
        with device.current():
            try:
                self._address = int(call("cuIpcOpenMemHandle", ipc_handle, LAZY_PEER_ACCESS))
                try:
                    self._bytes = int(call("cuMemGetAddressRange", self._address)[1])
                except StoreError:
                    call("cuIpcCloseMemHandle", self._address)
                    raise
            except DeviceLost as error:
                raise BackendMissing(f"the driver does not share memory between processes ({error})") from error

    def read(self, count: int) -> torch.Tensor:
        """Return a copy of the first `count` regions' pixels: uint8 [count, 3, 32, 32], there when this returns.

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
