"""NVIDIA's driver as its own library describes it, without torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from arr_coc.errors import BackendMissing, DeviceLost, StoreError

LIBRARY = "libcuda.so.1"

NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE of cuda.h."""

_CAPABILITY = (75, 76)
_MULTIPROCESSORS = 16
"""CU_DEVICE_ATTRIBUTE_* of cuda.h."""


@dataclass(frozen=True, slots=True)
class NvidiaDevice:
    """A GPU: `capability` is its compute capability, `memory_mb` all of its memory."""

    name: str
    capability: tuple[int, int]
    memory_mb: int
    multiprocessors: int


@dataclass(frozen=True, slots=True)
class NvidiaDriver:
    """The driver: the newest version of CUDA that it speaks, as major × 1000 + minor × 10, and its devices."""

    cuda: int
    devices: tuple[NvidiaDevice, ...]

    @property
    def cuda_text(self) -> str:
        return f"{self.cuda // 1000}.{self.cuda % 1000 // 10}"


def read_driver() -> NvidiaDriver:
    """Ask the driver. Raises BackendMissing without a driver or a GPU, DeviceLost if the driver cannot be used."""
    library = _loaded()
    version = _int(library.cuDriverGetVersion)
    return NvidiaDriver(version, tuple(_device(library, index) for index in range(_count(library))))


def driver_devices() -> int:
    """Return the number of devices that the driver knows; 0 without one."""
    try:
        return _count(_loaded())
    except StoreError:
        return 0


def _loaded() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise BackendMissing("no NVIDIA driver") from error
    status = library.cuInit(0)
    if status == NO_DEVICE:
        raise BackendMissing("no NVIDIA GPU")
    if status:
        raise DeviceLost(f"the NVIDIA driver does not start (cuInit gives {status})", "check it with nvidia-smi")
    return library


def _count(library: ctypes.CDLL) -> int:
    return _int(library.cuDeviceGetCount)


def _device(library: ctypes.CDLL, index: int) -> NvidiaDevice:
    device = _int(library.cuDeviceGet, index)
    name = ctypes.create_string_buffer(256)
    memory = ctypes.c_size_t()
    _check(library.cuDeviceGetName(name, len(name), device))
    _check(library.cuDeviceTotalMem_v2(ctypes.byref(memory), device))
    major, minor, multiprocessors = (
        _int(library.cuDeviceGetAttribute, attribute, device) for attribute in (*_CAPABILITY, _MULTIPROCESSORS)
    )
    return NvidiaDevice(name.value.decode(errors="replace"), (major, minor), memory.value >> 20, multiprocessors)


def _int(function: Callable[..., int], *arguments: int) -> int:
    value = ctypes.c_int()
    _check(function(ctypes.byref(value), *arguments))
    return value.value


def _check(status: int) -> None:
    if status:
        raise DeviceLost(f"the NVIDIA driver does not describe its devices (error {status})")
