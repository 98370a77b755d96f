"""The texture store: one contract, several backends, the same bytes from each."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from functools import cache
from typing import Literal, get_args

from arr_coc.errors import BackendMissing, StoreError
from arr_coc.ops.difference import Difference, Thresholds
from arr_coc.ops.planes import PlaneFormat
from arr_coc.ops.view import TextureView
from arr_coc.types import FramePlanes, FrameStamp, TileChange, TileGrid

Backend = Literal["auto", "cpu", "gl", "cuda"]

LEASE_TIMEOUT_MS = 2000

_log = logging.getLogger(__name__)

__all__ = ["Backend", "TextureStore", "TextureView", "open_store"]


class TextureStore(ABC):
    """A tiled, mip-mapped RGB texture that follows a stream's frames.

    One thread writes (`compare`, `write`, `update`, `begin_epoch`, `close`); any number of threads read, each under a
    lease.
    """

    backend: str
    format: PlaneFormat
    grid: TileGrid

    @property
    @abstractmethod
    def hardware(self) -> str:
        """What holds the texture, for people."""

    @abstractmethod
    def accepts(self, planes: FramePlanes) -> bool:
        """Whether planes are of the store's format."""

    @property
    @abstractmethod
    def held(self) -> FramePlanes:
        """The planes as the texture holds them, for the writing thread only; they change with the next write."""

    @abstractmethod
    def compare(self, planes: FramePlanes) -> Difference:
        """Which tiles differ from what the texture holds. Takes no lease: readers may go on.

        Raises ShapeError where the planes are not of the store's format.
        """

    @abstractmethod
    def write(self, planes: FramePlanes, difference: Difference, stamp: FrameStamp) -> TileChange:
        """Brings the dirty tiles up to date, and moves their versions to `stamp`.

        A new `stamp.epoch` brings every tile up to date. Waits for the readers first: raises LeaseTimeout,
        with the texture as it was, where they keep it longer than the store's time limit; StoreError after `close`.
        """

    def update(self, planes: FramePlanes, stamp: FrameStamp) -> TileChange:
        """Compares and writes."""
        return self.write(planes, self.compare(planes), stamp)

    @abstractmethod
    def begin_epoch(self, epoch: int, frame_index: int) -> None:
        """Moves every tile's version to (epoch, frame_index), and leaves the texels as they are."""

    @abstractmethod
    def lease(self, timeout_ms: int | None = None) -> AbstractContextManager[TextureView]:
        """A view that no write disturbs while the context lasts.

        Raises LeaseTimeout where the writer does not finish in time, StoreError before the first frame and after
        `close`.
        """

    @abstractmethod
    def close(self) -> None:
        """Refuses new leases and writes; views already given stay valid until their lease ends. May be called twice."""


def open_store(
    fmt: PlaneFormat,
    backend: Backend = "auto",
    *,
    thresholds: Thresholds | None = None,
    lease_timeout_ms: int = LEASE_TIMEOUT_MS,
) -> TextureStore:
    """Opens a store for frames of one format.

    `auto` is the CUDA store where there is a CUDA device that torch can use, else the CPU store: OpenGL gives nothing
    that CUDA does not give faster, and in software it is slower than the CPU store. Where the device is there and the
    store cannot run, the log says why. Raises StoreError for an unknown backend, BackendMissing where one that was
    asked for by name cannot run here.
    """
    if backend not in get_args(Backend):
        raise StoreError(f"unknown texture backend {backend!r}; known: {', '.join(get_args(Backend))}")
    chosen = thresholds or Thresholds()
    if backend == "gl":
        from arr_coc.ops.gl.store import GlStore

        return GlStore(fmt, chosen, lease_timeout_ms)
    if backend == "cuda":
        from arr_coc.ops.cuda.store import CudaStore

        return CudaStore(fmt, chosen, lease_timeout_ms)
    if backend == "auto" and has_cuda():
        try:
            return open_store(fmt, "cuda", thresholds=thresholds, lease_timeout_ms=lease_timeout_ms)
        except BackendMissing as error:
            _say_once(str(error))
    from arr_coc.ops.cpu import CpuStore

    return CpuStore(fmt, chosen, lease_timeout_ms)


@cache
def _say_once(problem: str) -> None:
    _log.warning("there is a CUDA device, and the texture lies in ordinary memory all the same: %s", problem)


def has_cuda() -> bool:
    """Whether torch can use a CUDA device."""
    import torch

    return torch.cuda.is_available()
