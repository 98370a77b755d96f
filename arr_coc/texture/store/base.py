"""Texture backends: contract, views that a reader gets, shared parts, leases, and the CPU store."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from arr_coc.errors import DeviceLost, LeaseTimeout, ShapeError, StoreError
from arr_coc.texture.regions import exist_on
from arr_coc.texture.store.native import host_texture
from arr_coc.texture.store.planes import Difference, Mask, Plane, PlaneFormat, Thresholds
from arr_coc.texture.store.raster import HostTexture, gather
from arr_coc.types import LEVELS, FramePlanes, FrameStamp, TileChange, TileGrid, TileVersions

if TYPE_CHECKING:
    import torch


class TexelReader(Protocol):
    """The texels of one texture, as one thread reaches them."""

    def read(self, level: int) -> Plane:
        """One level that exists: uint8 [rows * 32 >> level, cols * 32 >> level, 3]."""
        ...

    def gather(self, regions: npt.NDArray[np.int64]) -> Plane:
        """Return the pixels of regions [K, 3] (shape, row, col) that exist: uint8 [K, 3, 32, 32], edge-clamped."""
        ...


class MemoryTexels:
    """Levels in host memory."""

    def __init__(self, levels: tuple[Plane, ...]) -> None:
        self._levels = levels

    def read(self, level: int) -> Plane:
        return self._levels[level]

    def gather(self, regions: npt.NDArray[np.int64]) -> Plane:
        return gather(self._levels, regions)


class TextureView:
    """The texture as one frame left it: `stamp`, `grid`, `versions`, and its texels until the lease ends."""

    def __init__(self, stamp: FrameStamp, grid: TileGrid, versions: TileVersions, texels: TexelReader) -> None:
        self.stamp = stamp
        self.grid = grid
        self.versions = versions
        self._texels: TexelReader | None = texels

    def read(self, level: int) -> Plane:
        """One level, read-only uint8 [rows * 32 >> level, cols * 32 >> level, 3], valid while the lease lasts.

        Raises StoreError after the lease has ended, ShapeError if the level does not exist.
        """
        if not 0 <= level < LEVELS:
            raise ShapeError(f"a texture has levels 0 to {LEVELS - 1}, got {level}")
        array = self._held().read(level).view()
        array.flags.writeable = False
        return array

    def gather(self, regions: npt.NDArray[np.integer]) -> Plane:
        """Return the pixels of regions [K, 3] (shape, row, col): uint8 [K, 3, 32, 32], RGB.

        A square (L, r, c) shows the 32×32 texels at (32r, 32c) of level L, edge-clamped. A wide or tall region shows
        those of the level of its finer side, each the mean of 2, 4 or 8 along the other side, halves up: see
        `Footprint`. Raises ShapeError if `regions` is not such an array or a region lies outside the grid,
        StoreError after the lease has ended.
        """
        return self._held().gather(self._checked(np.asarray(regions)))

    def release(self) -> None:
        """End the view: its texels may be overwritten from here on."""
        self._texels = None

    def _held(self) -> TexelReader:
        if self._texels is None:
            raise StoreError("this view's lease has ended; take a new lease to read the texture")
        return self._texels

    def _checked(self, regions: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        if regions.ndim != 2 or regions.shape[1] != 3 or not np.issubdtype(regions.dtype, np.integer):
            raise ShapeError(f"regions are integers [K, 3] (shape, row, col), got {regions.dtype} {regions.shape}")
        codes = regions.astype(np.int64)
        exists = exist_on(codes, self.grid.shape)
        if not exists.all():
            first = codes[np.flatnonzero(~exists)[0]].tolist()
            raise ShapeError(f"region {first} (shape, row, col) lies outside a grid of {self.grid.shape} tiles")
        return codes


@runtime_checkable
class DevicePatches(Protocol):
    """A view whose hardware gathers pixels into tensors."""

    def patches(self, regions: npt.NDArray[np.integer[Any]] | torch.Tensor) -> torch.Tensor:
        """Return the pixels of regions [K, 3], uint8 [K, 3, 32, 32] on the device."""
        ...


def gather_pixels(
    view: TextureView, regions: npt.NDArray[np.integer[Any]] | torch.Tensor
) -> npt.NDArray[np.uint8] | torch.Tensor:
    """Return the pixels of regions, on the texture's device."""
    if isinstance(view, DevicePatches):
        return view.patches(regions)
    return view.gather(np.asarray(regions))


@dataclass(frozen=True, slots=True)
class DrawnTexture:
    """A texture for OpenGL to draw from: `name` of an RGBA8 texture of six levels, which shows the frame of `stamp`.

    It is not to be written to. Its size is that of `grid`, 32 texels a tile,
    to which a picture's edge is repeated.
    """

    name: int
    stamp: FrameStamp
    grid: TileGrid


class LeaseLock:
    """A readers-writer lock that says who kept whom waiting.

    A waiting writer goes before new readers, so that readers cannot starve it; a thread that already reads may read
    again.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers: dict[int, tuple[str, int]] = {}
        self._writer: str | None = None
        self._waiting_writers = 0

    @property
    def writer_waits(self) -> bool:
        """True while a writer is kept waiting, and new readers with it."""
        return self._waiting_writers > 0

    @contextmanager
    def reading(self, timeout_ms: int) -> Iterator[None]:
        """Raise LeaseTimeout if the writer does not finish within `timeout_ms`."""
        me = threading.get_ident()
        with self._condition:
            may_read = self._condition.wait_for(
                lambda: self._writer is None and (not self.writer_waits or me in self._readers), timeout_ms / 1e3
            )
            if not may_read:
                raise LeaseTimeout(
                    f"{_name()} waited {timeout_ms} ms to read the texture, while {self._writer or 'a writer'} "
                    "waited or wrote; raise texture.lease_timeout_ms"
                )
            name, depth = self._readers.get(me, (_name(), 0))
            self._readers[me] = (name, depth + 1)
        try:
            yield
        finally:
            with self._condition:
                name, depth = self._readers.pop(me)
                if depth > 1:
                    self._readers[me] = (name, depth - 1)
                self._condition.notify_all()

    @contextmanager
    def writing(self, timeout_ms: int) -> Iterator[None]:
        """Raise LeaseTimeout if the readers do not end within `timeout_ms`."""
        with self._condition:
            self._waiting_writers += 1
            try:
                may_write = self._condition.wait_for(
                    lambda: self._writer is None and not self._readers, timeout_ms / 1e3
                )
                if not may_write:
                    holders = ", ".join(name for name, _ in self._readers.values()) or self._writer
                    raise LeaseTimeout(
                        f"{_name()} waited {timeout_ms} ms to write the texture, which {holders} still read; "
                        "release leases sooner or raise texture.lease_timeout_ms"
                    )
                self._writer = _name()
            finally:
                self._waiting_writers -= 1
                self._condition.notify_all()
        try:
            yield
        finally:
            with self._condition:
                self._writer = None
                self._condition.notify_all()


def _name() -> str:
    return f"thread {threading.current_thread().name!r}"


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
        """Name of the hardware that holds the texture, for people."""

    @abstractmethod
    def accepts(self, planes: FramePlanes) -> bool:
        """Return True if planes are of the store's format."""

    @property
    @abstractmethod
    def held_planes(self) -> FramePlanes:
        """The planes as the texture holds them, for the writing thread only; they change with the next write."""

    @abstractmethod
    def compare(self, planes: FramePlanes) -> Difference:
        """Return the tiles that differ from the texture. Takes no lease: readers may go on.

        Raises ShapeError if the planes are not of the store's format.
        """

    @abstractmethod
    def write(self, planes: FramePlanes, difference: Difference, stamp: FrameStamp) -> TileChange:
        """Update the dirty tiles, and set their versions. Waits for the readers first.

        Args:
            planes: The frame.
            difference: What `compare` returned for the frame.
            stamp: The frame's stamp; a new `stamp.epoch` brings every tile up to date.

        Raises:
            LeaseTimeout: Readers hold the texture, which stays as it was, longer than the store's time limit.
            StoreError: After `close`.
        """

    def update(self, planes: FramePlanes, stamp: FrameStamp) -> TileChange:
        """Compare and write."""
        return self.write(planes, self.compare(planes), stamp)

    @abstractmethod
    def lease(self, timeout_ms: int | None = None) -> AbstractContextManager[TextureView]:
        """Return a view that no write disturbs while the context lasts.

        Raises LeaseTimeout if the writer does not finish in time, StoreError before the first frame and after
        `close`.
        """

    def drawing(self, timeout_ms: int | None = None) -> AbstractContextManager[DrawnTexture]:
        """Lease the texture for drawing with OpenGL; only stores of OpenGL have one.

        The caller's context is current, and shares objects with the store's (`GlDevice.make_context`). What it draws
        inside shows one frame; the next one is written after that. Raises what `lease` raises, and StoreError without a
        context, or if the texture is none of OpenGL.
        """
        raise StoreError(
            f"OpenGL cannot draw from a texture that is stored by {self.backend} ({self.hardware}); "
            "choose texture.backend = gl"
        )

    @abstractmethod
    def close(self) -> None:
        """Refuse new leases and writes; views already given stay valid until their lease ends. May be called twice."""


class BaseTextureStore(TextureStore):
    """A store that compares frames with its own copy of the planes, in host memory."""

    def __init__(self, fmt: PlaneFormat, thresholds: Thresholds, lease_timeout_ms: int, levels: int = LEVELS) -> None:
        """`levels`: how many are kept in host memory, from the finest."""
        self.format = fmt
        self.grid = fmt.grid
        self._lease_timeout_ms = lease_timeout_ms
        self._host: HostTexture = host_texture(fmt, thresholds, levels)
        self._samples = [(plane.shape, plane.dtype) for plane in self._host.planes]
        self._leases = LeaseLock()
        self._versions = TileVersions(0, np.full(self.grid.shape, -1, np.int64))
        self._stamp: FrameStamp | None = None
        self._failure: StoreError | None = None
        self._users = 0
        self._users_lock = threading.Lock()
        self._closed = False

    @abstractmethod
    def _update_levels(self, planes: FramePlanes, dirty: Mask) -> None:
        """Write the dirty tiles of `planes`, on all levels. There are no readers meanwhile.

        Raises DeviceLost if the hardware failed.
        """

    @abstractmethod
    def _texels(self) -> TexelReader:
        """Return the texels for a reader's thread."""

    def _free(self) -> None:
        """Free the hardware's memory, once the store is closed and unused. May be called twice."""

    def accepts(self, planes: FramePlanes) -> bool:
        return (
            planes.layout == self.format.layout
            and [(plane.shape, plane.dtype) for plane in planes.planes] == self._samples
            and planes.colour == self.format.colour
        )

    @property
    def held_planes(self) -> FramePlanes:
        return FramePlanes(self.format.layout, self._host.planes, self.format.colour)

    def compare(self, planes: FramePlanes) -> Difference:
        self._check(planes)
        if self._stamp is None:
            return Difference.everywhere(self.grid)
        return Difference(self._host.compare(planes))

    def write(self, planes: FramePlanes, difference: Difference, stamp: FrameStamp) -> TileChange:
        self._check(planes)
        if self._begins(stamp):
            dirty = np.ones(self.grid.shape, bool)
        else:
            dirty = difference.dirty
        with self._writing():
            if dirty.any():
                self._update_levels(planes, dirty)
            self._note(dirty, stamp)
        return TileChange(stamp, dirty)

    @contextmanager
    def lease(self, timeout_ms: int | None = None) -> Iterator[TextureView]:
        if timeout_ms is None:
            limit_ms = self._lease_timeout_ms
        else:
            limit_ms = timeout_ms
        with self._using(), self._leases.reading(limit_ms):
            if self._stamp is None:
                raise StoreError("the texture holds no frame yet; write one before reading")
            if self._failure is not None:
                raise DeviceLost(str(self._failure)) from self._failure
            view = TextureView(self._stamp, self.grid, self._versions, self._texels())
            try:
                yield view
            finally:
                view.release()

    def close(self) -> None:
        self._closed = True
        self._free_if_idle()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Keep the hardware's memory meanwhile, even if the store closes. Raises StoreError if it is closed already."""
        with self._users_lock:
            if self._closed:
                raise StoreError("the texture store is closed")
            self._users += 1
        try:
            yield
        finally:
            with self._users_lock:
                self._users -= 1
            self._free_if_idle()

    def _free_if_idle(self) -> None:
        with self._users_lock:
            idle = self._closed and not self._users
        if idle:
            self._free()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Without readers."""
        with self._using(), self._leases.writing(self._lease_timeout_ms), self._noting_failure():
            yield

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """A write that fails halfway leaves texels of two frames, which must not be read."""
        try:
            yield
        except StoreError as error:
            self._failure = error
            raise

    def _begins(self, stamp: FrameStamp) -> bool:
        """Return True if a frame begins an epoch, and so is written whole."""
        return self._stamp is None or stamp.epoch != self._versions.epoch

    def _note(self, dirty: npt.NDArray[np.bool_], stamp: FrameStamp) -> None:
        """Move the versions of dirty tiles to the written frame."""
        if dirty.any():
            frame = np.where(dirty, stamp.frame_index, self._versions.frame)
            frame.flags.writeable = False
            self._versions = TileVersions(stamp.epoch, frame)
        self._stamp = stamp

    def _check(self, planes: FramePlanes) -> None:
        if not self.accepts(planes):
            raise ShapeError(f"the store was opened for {self.format}, got a frame of {PlaneFormat.of(planes)}")


class CpuStore(BaseTextureStore):
    """A texture in host memory; nothing of it outlives the process."""

    backend = "cpu"

    @property
    def hardware(self) -> str:
        return f"host memory, {self._host.name}"

    def _update_levels(self, planes: FramePlanes, dirty: Mask) -> None:
        self._host.update(planes, dirty)

    def _texels(self) -> HostTexture:
        return self._host
