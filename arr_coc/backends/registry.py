"""The registry of texture backends, each imported when it is first used, and a probe of which of them works here.

    python -m arr_coc.backends.registry gl

prints what holds the texture with status 0, or with status 1 why it cannot be used; and in a second line what would
make it work, or work faster.
Without a name it tries `auto`.
"""

from __future__ import annotations

import logging
import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

import numpy as np

from arr_coc.errors import BackendMissing, StoreError
from arr_coc.texture.store.base import LEASE_TIMEOUT_MS, Backend, TextureStore
from arr_coc.texture.store.native import kernel_remedy
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.types import LEVELS, TILE_PX, FramePlanes, FrameStamp

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

STORES = {
    "cpu": "arr_coc.texture.store.base:CpuStore",
    "cuda": "arr_coc.backends.cuda.store:CudaStore",
    "gl": "arr_coc.backends.gl.store:GlStore",
}
"""Class of each store, as `module:name`. The parts below are named likewise."""
GL_STORE_OF_CUDA = "arr_coc.backends.cuda.interop:GlCudaStore"
INTEROP_PROBLEM = "arr_coc.backends.cuda.interop:interop_problem"
GL_DEVICE = "arr_coc.backends.gl.device:open_device"
CUDA_TEXTURE = "arr_coc.backends.cuda.sampling:HardwareTexture"
SHARED_MEMORY = "arr_coc.backends.cuda.ipc:SharedMemory"
OPENED_MEMORY = "arr_coc.backends.cuda.ipc:OpenedMemory"


class SharedPixels(Protocol):
    """Memory of a device that another process may open by `handle`, on the device of UUID `gpu`."""

    @property
    def handle(self) -> bytes: ...

    gpu: bytes

    def write(self, pixels: torch.Tensor) -> None:
        """Copy pixels uint8 [K, 3, 32, 32]; the copy is complete on return. Raises ShapeError or DeviceLost."""
        ...

    def close(self) -> None: ...


class OpenedPixels(Protocol):
    """Memory of another process, which it calls `handle`."""

    handle: bytes

    def read(self, count: int) -> torch.Tensor:
        """Return a copy of the first `count` regions' pixels. Raises ShapeError or DeviceLost."""
        ...

    def close(self) -> None: ...


def _part(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def open_store(
    fmt: PlaneFormat,
    backend: Backend = "auto",
    *,
    thresholds: Thresholds | None = None,
    lease_timeout_ms: int = LEASE_TIMEOUT_MS,
    interop: int | None = None,
) -> TextureStore:
    """Open a store for frames of one format.

    `auto` is the CUDA store if there is a CUDA device that torch can use, else the CPU store: OpenGL gives nothing
    that CUDA does not give faster, and in software it is slower than the CPU store. If the device is present and the
    store cannot run, the reason is logged.

    Args:
        fmt: Format of the frames.
        backend: "auto", "cpu", "cuda" or "gl".
        thresholds: Differences from which a tile counts as changed; None for the default.
        lease_timeout_ms: Longest wait of a write for the readers.
        interop: Number of the CUDA device that writes and reads a texture of OpenGL; None for OpenGL alone.

    Raises:
        StoreError: An unknown backend.
        BackendMissing: A backend that was requested by name cannot run here, or cannot be read by CUDA.
    """
    if backend not in get_args(Backend):
        raise StoreError(f"unknown texture backend {backend!r}; known: {', '.join(get_args(Backend))}")
    rules = thresholds or Thresholds()
    if backend == "auto":
        if has_cuda():
            try:
                return open_store(fmt, "cuda", thresholds=rules, lease_timeout_ms=lease_timeout_ms)
            except BackendMissing as error:
                _say_once(str(error))
        backend = "cpu"
    if backend == "gl" and interop is not None:
        store: TextureStore = _part(GL_STORE_OF_CUDA)(fmt, rules, lease_timeout_ms, interop)
    else:
        store = _part(STORES[backend])(fmt, rules, lease_timeout_ms)
    return store


def open_gl_device(cuda_device: int | None) -> Any:
    """Return OpenGL's device (`arr_coc.backends.gl.device.GlDevice`), on CUDA device `cuda_device`; None for any.

    Raises BackendMissing if OpenGL does not work here.
    """
    return _part(GL_DEVICE)(cuda_device)


def interop_problem(cuda_device: int) -> str | None:
    """Return why CUDA device `cuda_device` cannot share textures with OpenGL here; None if it can."""
    problem: str | None = _part(INTEROP_PROBLEM)(cuda_device)
    return problem


def texture_units(image: object) -> Any | None:
    """Return the sampler of a picture uint8 [3, H, W] by the texture units of the CUDA device that it lies on; None if
    it is something else, or lies on no such device. Raises DeviceLost."""
    return _part(CUDA_TEXTURE).of(image)


def share_memory(cuda_device: int | None) -> SharedPixels:
    """Return memory for pixels on a CUDA device; None for torch's current one. Raises BackendMissing or DeviceLost."""
    memory: SharedPixels = _part(SHARED_MEMORY)(cuda_device)
    return memory


def open_memory(handle: bytes, gpu: bytes) -> OpenedPixels:
    """Return the memory of another process. Raises StoreError."""
    memory: OpenedPixels = _part(OPENED_MEMORY)(handle, gpu)
    return memory


@cache
def _say_once(problem: str) -> None:
    log.warning("there is a CUDA device, but the texture is stored in host memory: %s", problem)


def has_cuda() -> bool:
    """Return True if torch can use a CUDA device."""
    import torch

    return torch.cuda.is_available()


def probe_backend(backend: Backend = "auto") -> str:
    """Return the name of the store that `backend` means here; see `probe`."""
    return probe(backend)[0]


def probe(backend: Backend) -> tuple[str, str]:
    """Return the name of the store that `backend` means here, and what holds its texture, after opening, writing,
    reading and closing one.

    Raises BackendMissing if a requirement is missing, DeviceLost if its hardware failed.
    """
    planes = FramePlanes("gray", (np.full((TILE_PX, TILE_PX), 128, np.uint8),))
    store = open_store(PlaneFormat.of(planes), backend)
    try:
        store.update(planes, FrameStamp(0, 0, 0))
        with store.lease() as view:
            view.read(LEVELS - 1)
        return store.backend, store.hardware
    finally:
        store.close()


def main() -> int:
    try:
        name, hardware = probe(cast(Backend, next(iter(sys.argv[1:]), "auto")))
        print(hardware, (kernel_remedy() if name == "cpu" else None) or "", sep="\n")
    except StoreError as error:
        print(" ".join(error.problem.split()), error.remedy or "", sep="\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
