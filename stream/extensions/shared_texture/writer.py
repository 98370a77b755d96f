"""Writer of a run's picture into memory that other processes map: only the tiles that changed are copied."""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np

from arr_coc.texture.packing import cover
from arr_coc.texture.store.base import TextureView
from arr_coc.types import TILE_PX, TileGrid, TileVersions
from stream.events import FrameMap
from stream.extensions.shared_texture.layout import (
    HEADER,
    MAGIC,
    SLOTS,
    VERSION,
    TextureMemory,
    fence,
    memory_bytes,
    slot_bytes,
)
from stream.protocol.buffers import nameless_file


class TextureWriter:
    """Writer of the pictures of one size, for one thread. Raises OSError if there is no memory.

    `descriptor` is what readers are given: they cannot write, and no process can shrink the memory.
    """

    def __init__(self, grid: TileGrid) -> None:
        size = memory_bytes(grid)
        written = nameless_file()
        try:
            os.ftruncate(written, size)
            if hasattr(fcntl, "F_ADD_SEALS"):  # a reader that shrank the memory would end the run by SIGBUS
                fcntl.fcntl(written, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            mapped = mmap.mmap(written, size)
            self.descriptor = _read_only(written)
        finally:
            os.close(written)
        self._versions: list[TileVersions | None] = [None] * SLOTS
        np.ndarray((), HEADER, mapped)[...] = (
            *(MAGIC, VERSION, SLOTS, grid.rows, grid.cols, grid.width_px, grid.height_px),
            *(slot_bytes(grid), 0),
        )
        self.memory = TextureMemory(mapped, grid)

    def write(self, view: TextureView, frame_map: FrameMap) -> int:
        """Write the picture of a view, of this writer's size, and its tiles; return its number."""
        level0 = view.read(0)
        number = self.memory.newest + 1
        index = number % SLOTS
        slot = self.memory.slots[index]
        before = self._versions[index]
        if before is None:
            stale = np.ones(view.grid.shape, bool)
        else:
            stale = before.stale(view.versions)
        self._versions[index] = None  # until the slot is whole
        slot.head["number"] = 0
        fence()
        for top, left, bottom, right in cover(stale):
            place = slice(top * TILE_PX, bottom * TILE_PX), slice(left * TILE_PX, right * TILE_PX)
            slot.pixels[place] = level0[place]
        slot.versions[:] = view.versions.frame
        slot.relevance[:] = np.frombuffer(frame_map.relevance, np.uint8).reshape(view.grid.shape)
        regions = np.frombuffer(frame_map.regions, "<i2").reshape(-1, 3)[: len(slot.regions)]
        slot.regions[: len(regions)] = regions
        stamp = view.stamp
        slot.head["frame_index"] = stamp.frame_index
        slot.head["epoch"] = view.versions.epoch
        slot.head["media_ns"] = stamp.media_ns
        slot.head["capture_ns"] = stamp.capture_ns
        slot.head["regions"] = len(regions)
        slot.head["overview"] = frame_map.overview
        fence()
        slot.head["number"] = number
        fence()
        self.memory.header["newest"] = number
        self._versions[index] = view.versions
        return number

    def close(self) -> None:
        """Close the descriptor; readers keep their memory."""
        os.close(self.descriptor)


def _read_only(descriptor: int) -> int:
    """Return another descriptor of a file, for reading alone if the system gives one."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # no /proc, as on macOS
        return os.dup(descriptor)
