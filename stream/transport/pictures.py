"""Sockets of live pictures: the sinks' process requests, the frame process sends one picture per request.

They are separate from the events, which wait for room: a picture that waits is worthless.
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
"""Queue of a socket in pictures."""


class PictureSender:
    """Frame process's end of the live pictures; belongs to the thread that made it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, PICTURES_WAITING)
        self._socket.connect(endpoint)

    def receive(self, timeout_ms: int) -> PictureRequest | None:
        """Return the newest request; None if none arrived in time. Raises TransportError for an invalid message."""
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
        """Send pictures by their widths; return False if earlier ones have not been taken yet."""
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
    """Viewers' end of the live pictures; belongs to the thread that made it, except for `wake`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        """Raise TransportError if the address cannot be bound."""
        self._socket = context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, 16),  # queue of requests; the newest counts
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
        """End the wait of `receive`. Thread-safe."""
        try:
            os.write(self._wakes, b"1")
        except (BlockingIOError, OSError):
            return  # already woken, or closed

    def request(self, request: PictureRequest) -> bool:
        """Request pictures of the next frame; return False if no frame process is connected."""
        try:
            self._socket.send(msgspec.msgpack.encode(request), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout_ms: int) -> dict[int, bytes] | None:
        """Return the newest pictures by width; None if none arrived within the time limit, or `wake` ended the wait."""
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
