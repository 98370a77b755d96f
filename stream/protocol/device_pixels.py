"""Pixels of tokens that stay on their device on the way to the model: within a process, or between two by CUDA IPC.

Memory shared between processes has one writer, the allocate stage, and belongs to the answer stage from the message
that names it until the next credit, like the shared frame.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from arr_coc.backends.registry import OpenedPixels, SharedPixels, open_memory, share_memory
from arr_coc.errors import ShapeError, StoreError
from stream.errors import TransportError
from stream.protocol.messages import PixelPlace

if TYPE_CHECKING:
    import torch


class PixelSender(Protocol):
    """Interface of the end that gathers pixels."""

    def offer(self) -> PixelPlace:
        """Return a place for a test by the other end."""
        ...

    def put(self, pixels: torch.Tensor) -> PixelPlace:
        """Put pixels uint8 [K, 3, 32, 32] at a place on a device that the other end can read. Raises DeviceLost."""
        ...


class PixelReceiver(Protocol):
    """Interface of the end with the model."""

    def refusal(self, offer: PixelPlace) -> str | None:
        """Return why pixels at a place cannot be read; None if they can."""
        ...

    def take(self, place: PixelPlace, count: int) -> torch.Tensor:
        """Return the pixels of `count` regions: uint8 [count, 3, 32, 32]. Raises TransportError if they are missing."""
        ...


class LocalPixels:
    """Both ends within one process: the newest pixels, by the number of their packet. Thread-safe."""

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
            pixels = self._pixels
            self._pixels = None
            if pixels is None or place.number != self._number or len(pixels) != count:
                raise TransportError(f"the pixels of packet {place.number} are not there, or not of {count} regions")
            return pixels


class IpcPixelSender:
    """Sender in the frame process, with shared memory on the texture's device, allocated on first use.

    `device`: number of the texture's CUDA device, by default torch's current one.
    """

    def __init__(self, device: int | None = None) -> None:
        self._device = device
        self._memory: SharedPixels | None = None
        self._number = 0

    def offer(self) -> PixelPlace:
        memory = self._shared_memory()
        return PixelPlace(handle=memory.handle, gpu=memory.gpu)

    def put(self, pixels: torch.Tensor) -> PixelPlace:
        memory = self._shared_memory()
        memory.write(pixels)
        self._number += 1
        return PixelPlace(number=self._number, handle=memory.handle, gpu=memory.gpu)

    def close(self) -> None:
        """Leave the memory to the next sender in this process. Idempotent."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _shared_memory(self) -> SharedPixels:
        if self._memory is None:
            self._memory = share_memory(self._device)
        return self._memory


class IpcPixelReceiver:
    """Receiver in the answer process: it opens the sender's memory, and copies pixels from it to separate memory."""

    def __init__(self) -> None:
        self._memory: OpenedPixels | None = None

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

    def _memory_at(self, place: PixelPlace) -> OpenedPixels:
        if self._memory is None or self._memory.handle != place.handle:
            if self._memory is not None:
                self._memory.close()
                self._memory = None
            self._memory = open_memory(place.handle, place.gpu)
        return self._memory
