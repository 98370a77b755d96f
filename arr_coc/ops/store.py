"""The texture store: one contract, several backends, the same bytes from each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Literal

from arr_coc.ops.difference import Difference
from arr_coc.ops.planes import PlaneFormat
from arr_coc.ops.view import TextureView
from arr_coc.types import FramePlanes, FrameStamp, TileChange, TileGrid

Backend = Literal["auto", "cpu", "gl", "cuda"]

LEASE_TIMEOUT_MS = 2000


class TextureStore(ABC):
    """A tiled, mip-mapped RGB texture that follows a stream's frames.

    One thread writes (`compare`, `write`, `update`, `close`); any number of threads read, each under a
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
    def lease(self, timeout_ms: int | None = None) -> AbstractContextManager[TextureView]:
        """A view that no write disturbs while the context lasts.

        Raises LeaseTimeout where the writer does not finish in time, StoreError before the first frame and after
        `close`.
        """

    @abstractmethod
    def close(self) -> None:
        """Refuses new leases and writes; views already given stay valid until their lease ends. May be called twice."""
