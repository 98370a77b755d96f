"""One frame's level 0 in memory that the frame process and the answer process share.

The memory is a file without a name whose descriptor the answer process inherits, so nothing is left behind
however either process ends. It has one writer, the allocate stage, and belongs to the answer stage from the
message that announces a frame until its next credit.
"""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np
import numpy.typing as npt

from stream.errors import TransportError

Image = npt.NDArray[np.uint8]


class SnapshotWriter:
    """The frame process's end; of memory that its parent made, where it inherited a descriptor."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = _nameless_file() if descriptor is None else descriptor
        self._map: mmap.mmap | None = None

    @property
    def descriptor(self) -> int:
        """What the answer process must inherit."""
        return self._descriptor

    def write(self, image: Image) -> None:
        """Copies `image` uint8 [H, W, 3] into the shared memory, which grows where it must."""
        if self._map is None or len(self._map) < image.nbytes:
            os.ftruncate(self._descriptor, image.nbytes)
            self._map = mmap.mmap(self._descriptor, image.nbytes)
        np.copyto(np.frombuffer(self._map, np.uint8, image.nbytes).reshape(image.shape), image)

    def close(self) -> None:
        self._map = None
        os.close(self._descriptor)


class SnapshotReader:
    """The answer process's end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None

    def read(self, height_px: int, width_px: int) -> Image:
        """The frame that lies there, uint8 [H, W, 3], read-only; valid until the answer stage's next credit.

        Raises TransportError where the shared memory is smaller than such a frame.
        """
        size = height_px * width_px * 3
        if self._map is None or len(self._map) < size:
            held = os.fstat(self._descriptor).st_size
            if held < size:
                raise TransportError(f"the snapshot holds {held} bytes, a frame of {width_px}x{height_px} has {size}")
            self._map = mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ)
        return np.frombuffer(self._map, np.uint8, size).reshape(height_px, width_px, 3)

    def close(self) -> None:
        self._map = None
        os.close(self._descriptor)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("arr-coc-frame")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
