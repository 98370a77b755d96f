"""Memory on CUDA: mip texture, staging ring, order of streams, and the mirror on the host."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.backends.cuda.device import CudaDevice, bindings, call
from arr_coc.errors import StoreError
from arr_coc.texture.packing import tile_view
from arr_coc.texture.store.planes import Plane
from arr_coc.texture.store.raster import allocate_levels
from arr_coc.types import LEVELS, TILE_PX, TileGrid

PORTABLE = 1
"""CU_MEMHOSTALLOC_PORTABLE of cuda.h: pinned for every context."""

NO_TIMING = 2
"""CU_EVENT_DISABLE_TIMING of cuda.h: an event that takes no time stamp costs less."""


class StagingBuffer:
    """As much memory on both sides: `host` uint8 [nbytes] is pinned, `device` is the other's address.

    `wait` returns once what used the memory before is done with it.
    """

    def __init__(self, device: CudaDevice, nbytes: int, resources: ExitStack) -> None:
        """In the current context. Raises DeviceLost if memory is short."""
        self._address = int(call("cuMemHostAlloc", nbytes, PORTABLE))
        resources.callback(call, "cuMemFreeHost", self._address)
        self._event = call("cuEventCreate", NO_TIMING)
        resources.callback(call, "cuEventDestroy", self._event)
        self._in_use = False
        self._memory = device.empty((nbytes,), torch.uint8)
        self.host: Plane = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self._address))
        self.device = self._memory.data_ptr()

    def upload(self, nbytes: int, stream: int) -> None:
        """Copy the first bytes to the device, asynchronously."""
        call("cuMemcpyHtoDAsync", self.device, self._address, nbytes, stream)

    def download(self, start: int, nbytes: int, stream: int) -> None:
        """Copy bytes from `start` on to the host, asynchronously."""
        call("cuMemcpyDtoHAsync", self._address + start, self.device + start, nbytes, stream)

    def mark(self, stream: int) -> None:
        """Mark the memory as in use until the stream has done its work up to now."""
        call("cuEventRecord", self._event, stream)
        self._in_use = True

    def wait(self) -> None:
        if self._in_use:
            call("cuEventSynchronize", self._event)
            self._in_use = False


class StagingRing:
    """Slots that take turns, so that one is filled while the device works on the others."""

    def __init__(self, device: CudaDevice, slots: int, nbytes: int, resources: ExitStack) -> None:
        self._slots = [StagingBuffer(device, nbytes, resources) for _ in range(slots)]
        self._next = 0

    def take(self) -> StagingBuffer:
        """Return the slot that has rested longest; waits if the device still reads it."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        slot.wait()
        return slot


class StreamOrder:
    """Events between streams: readers come after the last write, and a write after the reads that were given before.

    Leases order the host's calls; this orders what they left for the device to do. What a store owns is freed after
    `wait`, which waits for the store's own work: waiting for the whole context would wait for the model too, and is an
    error while it captures a graph (CUDA Programming Guide, "Prohibited and Unhandled Operations").
    """

    def __init__(self, resources: ExitStack) -> None:
        """In the current context."""
        # closed last: `wait` needs them all, however late one was made
        self._events = resources.enter_context(ExitStack())
        self._write_event = self._event()
        self._has_written = False
        self._reads: dict[int, Any] = {}
        self._spare: list[Any] = []
        self._lock = threading.Lock()

    @contextmanager
    def writing(self, stream: int) -> Iterator[None]:
        """Work inside comes after every read and write before, and before every one that follows."""
        self.before_write(stream)
        with self._marking(self.after_write, stream):
            yield

    @contextmanager
    def reading(self, stream: int) -> Iterator[None]:
        """Work inside comes after the last write, and before the next one."""
        self.before_read(stream)
        with self._marking(self.after_read, stream):
            yield

    def wait(self) -> None:
        """Return once the device has done all that was ordered. Raises DeviceLost."""
        with self._lock:
            events = [*self._reads.values(), *([self._write_event] if self._has_written else [])]
        for event in events:
            call("cuEventSynchronize", event)

    def before_write(self, stream: int) -> None:
        """Order all later work of the stream after every read and write."""
        with self._lock:
            for event in self._reads.values():
                call("cuStreamWaitEvent", stream, event, 0)
            self._spare.extend(self._reads.values())
            self._reads.clear()
        self.before_read(stream)

    def after_write(self, stream: int) -> None:
        call("cuEventRecord", self._write_event, stream)
        self._has_written = True

    def before_read(self, stream: int) -> None:
        """Order all later work of the stream after the last write."""
        if self._has_written:
            call("cuStreamWaitEvent", stream, self._write_event, 0)

    def after_read(self, stream: int) -> None:
        """Order the next write after the stream's work up to now."""
        with self._lock:
            if stream not in self._reads:
                self._reads[stream] = self._spare.pop() if self._spare else self._event()
            call("cuEventRecord", self._reads[stream], stream)

    @contextmanager
    def _marking(self, mark: Callable[[int], None], stream: int) -> Iterator[None]:
        """Mark the work that was given inside, also if only some of it could be."""
        try:
            yield
        except BaseException:
            with suppress(StoreError):
                mark(stream)
            raise
        mark(stream)

    def _event(self) -> Any:
        event = call("cuEventCreate", NO_TIMING)
        self._events.callback(call, "cuEventDestroy", event)
        return event


SURFACE_LDST = 2
"""CUDA_ARRAY3D_SURFACE_LDST of cuda.h: surfaces may write the array."""

AS_INTEGERS = 1
NORMALISED = 2
"""CU_TRSF_READ_AS_INTEGER and CU_TRSF_NORMALIZED_COORDINATES of cuda.h; a mipmapped texture takes no other
coordinates."""


class TextureHandles:
    """Six levels of RGBA8 on the device, to be read and written.

    Of the texture objects, which take normalised coordinates clamped to the edge, `handle` reads the nearest texel of
    the nearest level as bytes, and `smooth` blends texels and levels as floats of 0..1. `surfaces` are handles of the
    levels, the finest first. All are freed by the stack that was given.
    """

    def __init__(self, array: Any, grid: TileGrid, resources: ExitStack) -> None:
        """In the current context; `array` has levels of the grid's size. Raises DeviceLost."""
        self.width_px = grid.padded_width_px
        self.height_px = grid.padded_height_px
        levels = [call("cuMipmappedArrayGetLevel", array, level) for level in range(LEVELS)]
        self.surfaces = tuple(_surface(level, resources) for level in levels)
        self.handle = _texture_object(array, resources, blended=False)
        self.smooth = _texture_object(array, resources, blended=True)


class DeviceTexture(Protocol):
    """Texture of a store on the device."""

    def mapped(self) -> AbstractContextManager[TextureHandles]:
        """Return the texture for commands that are given inside. Raises DeviceLost, and StoreError while OpenGL draws
        from it in this thread."""
        ...


class MipTexture:
    """A texture of the device's own."""

    def __init__(self, grid: TileGrid, resources: ExitStack) -> None:
        """In the current context. Raises DeviceLost if the device has no memory for it."""
        cuda = bindings()
        descriptor = cuda.CUDA_ARRAY3D_DESCRIPTOR()
        descriptor.Width = grid.padded_width_px
        descriptor.Height = grid.padded_height_px
        descriptor.Depth = 0
        descriptor.Format = cuda.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
        descriptor.NumChannels = 4
        descriptor.Flags = SURFACE_LDST
        array = call("cuMipmappedArrayCreate", descriptor, LEVELS)
        resources.callback(call, "cuMipmappedArrayDestroy", array)
        self._handles = TextureHandles(array, grid, resources)

    @contextmanager
    def mapped(self) -> Iterator[TextureHandles]:
        """The handles, which stay the same."""
        yield self._handles


def _surface(level: Any, resources: ExitStack) -> int:
    cuda = bindings()
    resource = cuda.CUDA_RESOURCE_DESC()
    resource.resType = cuda.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
    resource.res.array.hArray = level
    surface = call("cuSurfObjectCreate", resource)
    resources.callback(call, "cuSurfObjectDestroy", surface)
    return int(surface)


def _texture_object(array: Any, resources: ExitStack, blended: bool) -> int:
    cuda = bindings()
    resource = cuda.CUDA_RESOURCE_DESC()
    resource.resType = cuda.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
    resource.res.mipmap.hMipmappedArray = array
    descriptor = cuda.CUDA_TEXTURE_DESC()
    descriptor.addressMode = [cuda.CUaddress_mode.CU_TR_ADDRESS_MODE_CLAMP] * 3
    point = cuda.CUfilter_mode.CU_TR_FILTER_MODE_POINT
    linear = cuda.CUfilter_mode.CU_TR_FILTER_MODE_LINEAR
    descriptor.filterMode = descriptor.mipmapFilterMode = linear if blended else point
    if blended:
        descriptor.flags = NORMALISED
    else:
        descriptor.flags = NORMALISED | AS_INTEGERS
    descriptor.minMipmapLevelClamp = 0.0
    descriptor.maxMipmapLevelClamp = float(LEVELS - 1)
    texture = call("cuTexObjectCreate", resource, descriptor, None)
    resources.callback(call, "cuTexObjectDestroy", texture)
    return int(texture)


AT_ONCE = 512
"""Tiles that travel at a time."""

PLACE_BYTES = 8
"""Row and column of a tile, int32 each."""

FINE_BYTES = TILE_PX * TILE_PX * 3

Tiles = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


def room_for(tiles: int) -> int:
    """Return the bytes of the places and the level 0 of `tiles` tiles."""
    return places_bytes(tiles) + tiles * FINE_BYTES


def places_bytes(tiles: int) -> int:
    """Return the bytes of the places of `tiles` tiles, aligned for the texels behind them."""
    return -(-tiles * PLACE_BYTES // 256) * 256


def put_places(slot: StagingBuffer, tiles: Tiles) -> int:
    """Write the places of tiles int [n, 2] at the start of a slot; returns their size in bytes."""
    slot.host[: len(tiles) * PLACE_BYTES].view(np.int32).reshape(-1, 2)[:] = tiles
    return places_bytes(len(tiles))


class HostMirror:
    """Levels in host memory. `level0` belongs to who converts frames on the host, and is stale only after frames
    that never were there; the others are stale after every write."""

    def __init__(
        self, device: CudaDevice, texture: DeviceTexture, order: StreamOrder, slot: StagingBuffer, level0: Plane
    ) -> None:
        """`slot` has room for `AT_ONCE` tiles, and has no other user."""
        self._device = device
        self._texture = texture
        self._order = order
        self._slot = slot
        rows = level0.shape[0] // TILE_PX
        cols = level0.shape[1] // TILE_PX
        self.levels = (level0, *allocate_levels(rows, cols)[1:])
        self._fine_stale = np.zeros((rows, cols), bool)
        self._coarse_stale = np.zeros((rows, cols), bool)
        self._fetch_lock = threading.Lock()

    def note(self, tiles: Tiles | Mask, level0: bool) -> None:
        """Note written tiles, int [n, 2] or bool [rows, cols]; `level0`: the mirror's level 0 is stale, too."""
        index = tuple(tiles.T) if tiles.dtype != bool else tiles
        self._coarse_stale[index] = True
        if level0:
            self._fine_stale[index] = True

    def read(self, level: int) -> Plane:
        """One level, up to date: uint8 [rows * 32 >> level, cols * 32 >> level, 3].

        Raises DeviceLost if the device failed.
        """
        with self._fetch_lock:
            if level == 0:
                stale = self._fine_stale
            else:
                stale = self._coarse_stale
            if stale.any():
                self._bring(np.argwhere(stale), 0 if level == 0 else 1)
                stale[:] = False
        return self.levels[level]

    def _bring(self, tiles: Tiles, first: int) -> None:
        """Copy tiles [n, 2] from the device: level 0, or if `first` is 1 all the others."""
        for start in range(0, len(tiles), AT_ONCE):
            part = tiles[start : start + AT_ONCE]
            levels = range(first, LEVELS if first else 1)
            content = self._fetched(part, first, sum(_tile_bytes(level) for level in levels) * len(part))
            for level in levels:
                side = TILE_PX >> level
                nbytes = _tile_bytes(level) * len(part)
                texels = content[:nbytes].reshape(-1, side, 3)
                content = content[nbytes:]
                rows, cols = part.T
                tile_view(self.levels[level], side, side)[rows, :, cols] = tile_view(texels, side, side)[:, :, 0]

    def _fetched(self, tiles: Tiles, first: int, nbytes: int) -> Plane:
        slot = self._slot
        start = put_places(slot, tiles)
        name = "fetch_coarse" if first else "fetch_fine"
        with (
            self._texture.mapped() as texture,
            self._device.current() as stream,
            self._order.reading(stream),
        ):
            slot.upload(start, stream)
            size = (texture.width_px, texture.height_px)
            arguments = (texture.handle, slot.device, *size, slot.device + start)
            self._device.kernels.launch(name, (len(tiles), 1), stream, *arguments)
            slot.download(start, nbytes, stream)
            slot.mark(stream)
            slot.wait()
        return slot.host[start : start + nbytes]


def _tile_bytes(level: int) -> int:
    return (TILE_PX >> level) ** 2 * 3
