"""Memory that holds a run's picture for other programs: its layout, for the run that writes and those that read.

A header, then SLOTS slots that are written by turns, all little-endian (docs/ar.md has the table). A slot's number is 0
while it is written. A reader copies the slot of the newest number, and has a whole picture if the slot still has that
number afterwards.
"""

from __future__ import annotations

import mmap
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_coc.errors import counted
from arr_coc.types import TileGrid
from stream.errors import TransportError

MAGIC = b"ARRCOCTX"
VERSION = 1
SLOTS = 2
PAGE = 4096

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("slots", "<u4"),
        ("rows", "<u4"),
        ("cols", "<u4"),
        ("width_px", "<u4"),
        ("height_px", "<u4"),
        ("slot_bytes", "<u8"),
        ("newest", "<u8"),
    ]
)

HEAD = np.dtype(
    [
        ("number", "<u8"),
        ("frame_index", "<i8"),
        ("epoch", "<u8"),
        ("media_ns", "<i8"),
        ("capture_ns", "<i8"),
        ("regions", "<u4"),
        ("overview", "<u4"),
    ]
)

REGIONS_PER_TILE = 2
"""Room for regions: one a tile, and an overview."""

_lock = threading.Lock()


def fence() -> None:
    """Keep the order of what is read and written before and after, on processors that change it, such as ARM: a lock
    that is taken and released twice does."""
    with _lock:
        pass
    with _lock:
        pass


@dataclass(frozen=True, slots=True)
class TextureSlot:
    """Arrays of one slot: `head`, a record; `versions` int64 [rows, cols]; `pixels` uint8 [rows * 32, cols * 32, 3],
    RGB; `relevance` uint8 [rows, cols], 255 is 1; and room for `regions` int16 [2 * tiles, 3] (shape, row, col)."""

    head: npt.NDArray[np.void]
    versions: npt.NDArray[np.int64]
    pixels: npt.NDArray[np.uint8]
    relevance: npt.NDArray[np.uint8]
    regions: npt.NDArray[np.int16]


class TextureMemory:
    """Header and slots of the memory of one size of picture, over its bytes."""

    def __init__(self, memory: mmap.mmap, grid: TileGrid) -> None:
        self._memory = memory
        self.grid = grid
        self.header = np.ndarray((), HEADER, memory)
        self.slots = tuple(self._slot(PAGE + slot_bytes(grid) * index) for index in range(SLOTS))

    @classmethod
    def of(cls, descriptor: int, size: int) -> TextureMemory:
        """Map memory that another process writes. Raises TransportError if it holds no texture of this version."""
        if size < PAGE:
            raise TransportError(f"the shared memory has {counted(size, 'byte')}, less than its header")
        memory = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        header = np.ndarray((), HEADER, memory)
        if header["magic"] != MAGIC or header["version"] != VERSION or header["slots"] != SLOTS:
            raise TransportError(
                f"the shared memory holds no texture of version {VERSION}; use one version on both ends"
            )
        grid = TileGrid(*(int(header[name]) for name in ("rows", "cols", "height_px", "width_px")))
        if grid.tiles < 1 or size < memory_bytes(grid):
            raise TransportError(f"shared memory of {size:,} B is too small for {counted(grid.tiles, 'tile')}")
        return cls(memory, grid)

    @property
    def newest(self) -> int:
        """Number of the newest picture, from 1; 0 before the first."""
        return int(self.header["newest"])

    def slot(self, number: int) -> TextureSlot:
        """Return the slot of the picture of this number."""
        return self.slots[number % SLOTS]

    def _slot(self, start: int) -> TextureSlot:
        rows, cols = self.grid.shape
        height_px = self.grid.padded_height_px
        width_px = self.grid.padded_width_px
        starts = [start + offset for offset in _offsets(self.grid)]
        return TextureSlot(
            np.ndarray((), HEAD, self._memory, starts[0]),
            np.ndarray((rows, cols), "<i8", self._memory, starts[1]),
            np.ndarray((height_px, width_px, 3), np.uint8, self._memory, starts[2]),
            np.ndarray((rows, cols), np.uint8, self._memory, starts[3]),
            np.ndarray((REGIONS_PER_TILE * rows * cols, 3), "<i2", self._memory, starts[4]),
        )


def slot_bytes(grid: TileGrid) -> int:
    """Return the size of one slot."""
    return _offsets(grid)[-1]


def memory_bytes(grid: TileGrid) -> int:
    """Return the size of the memory."""
    return PAGE + SLOTS * slot_bytes(grid)


def _offsets(grid: TileGrid) -> list[int]:
    """Return where the parts of a slot begin, whole cache lines, and where the next slot does, a whole page."""
    pixels = 3 * grid.padded_height_px * grid.padded_width_px
    sizes = (HEAD.itemsize, 8 * grid.tiles, pixels, grid.tiles, 2 * 3 * REGIONS_PER_TILE * grid.tiles)
    offsets = [0]
    for size in sizes:
        offsets.append(_aligned(offsets[-1] + size, 64))
    offsets[-1] = _aligned(offsets[-1], PAGE)
    return offsets


def _aligned(size: int, to: int) -> int:
    return -(-size // to) * to
