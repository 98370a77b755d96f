"""Sockets of the live pictures: the frame process sends, the process of the sinks asks, one request for one picture.

They are apart from the events: those wait for room, and a picture that waits is worth nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
import zmq

from stream.errors import TransportError
from stream.protocol.pictures import PictureRequest
from stream.untrusted import MIB

PICTURES_WAITING = 2
"""Pictures that may wait in a socket."""


class PictureSender:
    """End of the frame process; belongs to the thread that made it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, PICTURES_WAITING)
        self._socket.connect(endpoint)

    def receive(self, timeout_ms: int) -> PictureRequest | None:
        """Return the newest request, None without one within the time limit. Raises TransportError for nonsense."""
        if not self._socket.poll(timeout_ms):
            return None
        body = b""
        while self._socket.poll(0):
            body = self._socket.recv(zmq.NOBLOCK)
        try:
            return msgspec.msgpack.decode(body, type=PictureRequest)
        except msgspec.MsgspecError as error:
            raise TransportError(f"not a request for pictures: {error}") from error

    def send(self, pictures: Sequence[tuple[int, bytes]]) -> bool:
        """Send pictures by their widths; return False where the one before has not been taken yet."""
        try:
            self._socket.send(msgspec.msgpack.encode([width for width, _ in pictures]), zmq.NOBLOCK | zmq.SNDMORE)
        except zmq.Again:
            return False
        self._socket.send_multipart([body for _, body in pictures])
        return True

    def close(self) -> None:
        """Close the socket at once."""
        self._socket.close(linger=0)


class PictureReceiver:
    """End of the process that has the viewers; belongs to the thread that made it, but for `wake`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        """Raises TransportError where the address cannot be bound."""
        self._socket = context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, 16),  # requests that may; the newest counts
            (zmq.RCVHWM, PICTURES_WAITING),
            (zmq.MAXMSGSIZE, 32 * MIB),
        ):
            self._socket.setsockopt(option, value)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._socket.close(linger=0)
            raise TransportError(f"cannot open {endpoint}: {error}") from error
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wakes, False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._woken, zmq.POLLIN)

    def wake(self) -> None:
        """End the wait of `receive`; for any thread."""
        try:
            os.write(self._wakes, b"1")
        except (BlockingIOError, OSError):
            return  # it has been woken already, or is closed

    def request(self, request: PictureRequest) -> bool:
        """Ask for pictures of the next frame; return False where no frame process is there."""
        try:
            self._socket.send(msgspec.msgpack.encode(request), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout_ms: int) -> dict[int, bytes] | None:
        """Return the newest pictures by width; None where none came within the time limit, or the wait was ended."""
        ready = dict(self._poller.poll(timeout_ms))
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._socket not in ready:
            return None
        parts = self._socket.recv_multipart(zmq.NOBLOCK)
        try:
            widths = msgspec.msgpack.decode(parts[0], type=list[int])
        except msgspec.MsgspecError:
            return None
        return dict(zip(widths, parts[1:], strict=False))

    def close(self) -> None:
        """Close the socket at once."""
        self._socket.close(linger=0)
        os.close(self._wakes)
        os.close(self._woken)
