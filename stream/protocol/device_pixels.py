"""Pixels of tokens that stay on their device on the way to the model: within a process, and by CUDA IPC between two.

Memory that is shared between processes has one writer, the allocate stage, and belongs to the answer stage from the
message that names it until its next credit, as the shared frame does.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from arr_coc.errors import ShapeError, StoreError
from stream.errors import TransportError
from stream.protocol.messages import PixelPlace

if TYPE_CHECKING:
    import torch

    from arr_coc.ops.cuda.ipc import OpenedMemory, SharedMemory


class PixelSender(Protocol):
    """The end that gathers pixels."""

    def offer(self) -> PixelPlace:
        """Return a place for the other end to try."""
        ...

    def put(self, pixels: torch.Tensor) -> PixelPlace:
        """Lay pixels uint8 [K, 3, 32, 32] on a device where the other end finds them. Raises DeviceLost."""
        ...


class PixelReceiver(Protocol):
    """The end that has the model."""

    def refusal(self, offer: PixelPlace) -> str | None:
        """Return why pixels at such a place cannot be reached; None if they can."""
        ...

    def take(self, place: PixelPlace, count: int) -> torch.Tensor:
        """Return the pixels of `count` regions: uint8 [count, 3, 32, 32]. Raises TransportError where they are gone."""
        ...


class LocalPixels:
    """Both ends within one process: the newest pixels, by the number of their packet. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._pixels: torch.Tensor | None = None

    def offer(self) -> PixelPlace:
        return PixelPlace()

    def put(self, pixels: torch.Tensor) -> PixelPlace:
        with self._lock:
            self._number += 1
            self._pixels = pixels
            return PixelPlace(number=self._number)

    def refusal(self, offer: PixelPlace) -> str | None:
        return None

    def take(self, place: PixelPlace, count: int) -> torch.Tensor:
        with self._lock:
            pixels, self._pixels = self._pixels, None
            if pixels is None or place.number != self._number or len(pixels) != count:
                raise TransportError(f"the pixels of packet {place.number} are not there, or not of {count} regions")
            return pixels


class IpcPixelSender:
    """The end in the frame process: memory of its own on the texture's device, made when it is first wanted."""

    def __init__(self) -> None:
        self._memory: SharedMemory | None = None
        self._number = 0

    def offer(self) -> PixelPlace:
        memory = self._shared()
        return PixelPlace(handle=memory.handle, gpu=memory.gpu)

    def put(self, pixels: torch.Tensor) -> PixelPlace:
        memory = self._shared()
        memory.write(pixels)
        self._number += 1
        return PixelPlace(number=self._number, handle=memory.handle, gpu=memory.gpu)

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _shared(self) -> SharedMemory:
        from arr_coc.ops.cuda.ipc import SharedMemory

        if self._memory is None:
            self._memory = SharedMemory()
        return self._memory


class IpcPixelReceiver:
    """The end in the answer process: it opens the other's memory, and copies what lies there to memory of its own."""

    def __init__(self) -> None:
        self._opened: OpenedMemory | None = None

    def refusal(self, offer: PixelPlace) -> str | None:
        try:
            self._memory_at(offer)
        except (StoreError, TransportError) as error:
            return str(error)
        return None

    def take(self, place: PixelPlace, count: int) -> torch.Tensor:
        try:
            return self._memory_at(place).read(count)
        except (StoreError, ShapeError) as error:
            raise TransportError(f"the pixels of packet {place.number} cannot be read: {error}") from error

    def _memory_at(self, place: PixelPlace) -> OpenedMemory:
        from arr_coc.ops.cuda.ipc import HANDLE_BYTES, OpenedMemory

        if len(place.handle) != HANDLE_BYTES:
            raise TransportError("a place between processes needs a CUDA IPC handle")
        if self._opened is None or self._opened.handle != place.handle:
            if self._opened is not None:
                self._opened.close()
                self._opened = None
            self._opened = OpenedMemory(place.handle, place.gpu)
        return self._opened
