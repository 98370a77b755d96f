"""The CUDA device that torch uses, through torch's own primary context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from arr_coc.errors import BackendMissing, DeviceLost, ShapeError
from arr_coc.ops.cuda.driver import OUT_OF_MEMORY, call
from arr_coc.ops.cuda.kernels import Kernels


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU: where torch puts its tensors, the context that both share, and the kernels for it.

    `stream` gives the calling thread's current stream, as the driver's handle.
    """

    index: int
    place: torch.device
    context: Any
    kernels: Kernels
    stream: Callable[[], int]

    @contextmanager
    def current(self) -> Iterator[int]:
        """Makes the context the thread's current one meanwhile; gives the thread's current stream."""
        call("cuCtxPushCurrent", self.context)
        try:
            yield self.stream()
        finally:
            call("cuCtxPopCurrent")

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor on the device, not filled. Raises DeviceLost where there is no memory for it."""
        try:
            return torch.empty(shape, dtype=dtype, device=self.place)
        except torch.OutOfMemoryError as error:
            raise DeviceLost(f"{OUT_OF_MEMORY} (a tensor {list(shape)})") from error

    def check(self, tensor: torch.Tensor, what: str) -> None:
        """Raises ShapeError where a tensor lies elsewhere."""
        if tensor.device != self.place:
            raise ShapeError(
                f"{what} lies on {tensor.device} and the texture on {self.place}; move it with .to({str(self.place)!r})"
            )


def find_device() -> Device:
    """The device that is torch's current one in this thread.

    Raises BackendMissing where torch was built without CUDA, or there is no device or driver.
    """
    if torch.version.cuda is None:
        raise BackendMissing(
            f"texture.backend = cuda needs torch with CUDA, and this one ({torch.__version__}) was built without",
            "install a CUDA build, or choose texture.backend = cpu",
        )
    if not torch.cuda.is_available():
        raise BackendMissing(
            "texture.backend = cuda: torch finds no CUDA device here",
            "check the driver with nvidia-smi, or choose texture.backend = cpu",
        )
    return _opened(torch.cuda.current_device())


@cache
def _opened(index: int) -> Device:
    """One for all stores; its context lasts as long as the process, as torch's does."""
    torch.cuda.init()
    place = torch.device("cuda", index)
    context = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", index))
    kernels = Kernels(torch.cuda.get_device_capability(index))
    return Device(index, place, context, kernels, lambda: torch.cuda.current_stream(place).cuda_stream)
