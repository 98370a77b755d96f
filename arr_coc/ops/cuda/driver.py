"""Calls of the CUDA driver, with what goes wrong turned into errors of a store."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from arr_coc.errors import BackendMissing, DeviceLost, StoreError

OLDEST_DRIVER = 525
"""The first NVIDIA driver that reads the shipped PTX (ISA 8.0, CUDA 12.0)."""

_NO_DEVICE = ("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_INVALID_DEVICE", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
_WRONG_CODE = (
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_PTX",
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
)

OUT_OF_MEMORY = "the GPU is out of memory; close other programs on it, or choose texture.backend = cpu"


@lru_cache(maxsize=1)
def bindings() -> Any:
    """cuda-bindings' driver module, with the driver loaded. Raises BackendMissing where either is not here."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise BackendMissing("texture.backend = cuda needs cuda-bindings", "pip install cuda-bindings") from error
    try:
        status = driver.cuInit(0)[0]
    except (RuntimeError, OSError) as error:
        raise BackendMissing(
            "texture.backend = cuda finds no CUDA driver",
            f"install NVIDIA's, {OLDEST_DRIVER} or newer, or choose texture.backend = cpu",
        ) from error
    if status:
        raise failure("cuInit", status.name)
    return driver


def call(name: str, *arguments: Any) -> Any:
    """Calls one function of the driver: what it gives beside its status, which is None, one thing or a tuple.

    Raises BackendMissing where the driver or the device is not fit for it, DeviceLost where the device gave up.
    """
    try:
        status, *given = getattr(bindings(), name)(*arguments)
    except RuntimeError as error:
        if isinstance(error, StoreError):
            raise
        raise BackendMissing(f"the CUDA driver has no {name}", f"update it to {OLDEST_DRIVER} or newer") from error
    if status:
        raise failure(name, status.name)
    return given[0] if len(given) == 1 else (tuple(given) or None)


def failure(name: str, reason: str) -> StoreError:
    """The error for a call that failed; `reason` is the driver's name for it."""
    if reason == "CUDA_ERROR_OUT_OF_MEMORY":
        return DeviceLost(f"{OUT_OF_MEMORY} ({name})")
    if reason in _NO_DEVICE:
        return BackendMissing(
            f"texture.backend = cuda finds no device that works ({reason})", "check it with nvidia-smi"
        )
    if reason in _WRONG_CODE:
        return BackendMissing(
            f"the CUDA driver does not take the kernels ({reason})", f"update it to {OLDEST_DRIVER} or newer"
        )
    return DeviceLost(f"the GPU gave up in {name} ({reason}); open a new store, or choose texture.backend = cpu")
