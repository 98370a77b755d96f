"""The answer stage's end: one socket that many frame processes reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy.typing as npt
import zmq

from stream.errors import OutputError, TransportError
from stream.messages import Message, decode, encode
from stream.transport.bind import bind_output
from stream.transport.curve import ServerCurve
from stream.transport.link import (
    LINGER_MS,
    QUEUE_MESSAGES,
    Received,
    keep_alive,
    rest_of,
    send_arrays,
)

Client: TypeAlias = bytes
"""What ZeroMQ calls one connected peer."""

MAX_PART_BYTES = 256 * 1024 * 1024
"""Larger messages close their sender's connection: level 0 of an 8K frame has 100 MB."""

SEND_WAIT_MS = 2000
"""How long a client whose queue is full may take to read; it counts as gone then."""


class Port:
    """Takes messages from any client, and sends to one that is named. Belongs to the thread that made it."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, *, curve: ServerCurve | None = None
    ) -> None:
        self._socket = context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.LINGER, LINGER_MS),
            (zmq.SNDHWM, QUEUE_MESSAGES),
            (zmq.RCVHWM, QUEUE_MESSAGES),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.MAXMSGSIZE, MAX_PART_BYTES),
            (zmq.SNDTIMEO, SEND_WAIT_MS),
        ):
            self._socket.setsockopt(option, value)
        keep_alive(self._socket)
        if curve is not None:
            curve.apply(self._socket)
        self.unreadable = 0
        try:
            bind_output(self._socket, endpoint)
        except OutputError as error:
            self._socket.close(linger=0)
            raise TransportError(str(error)) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self, timeout_ms: int = 0) -> tuple[Client, Received] | None:
        """The next message and who sent it, or None within the time limit.

        What cannot be read is counted and dropped.
        """
        if timeout_ms and not self._socket.poll(timeout_ms):
            return None
        try:
            client = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        parts = rest_of(self._socket)
        try:
            return client, Received(decode(parts[0] if parts else b""), parts[1:])
        except TransportError:
            self.unreadable += 1
            return None

    def send(self, client: Client, message: Message, arrays: Sequence[npt.NDArray[Any]] = ()) -> bool:
        """Whether the client is still there to take it. Arrays must not change afterwards."""
        try:
            self._socket.send(client, zmq.SNDMORE)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        self._socket.send(encode(message), zmq.SNDMORE if arrays else 0)
        send_arrays(self._socket, arrays)
        return True

    def close(self) -> None:
        """Closes the socket; what is still on its way gets LINGER_MS."""
        self._socket.close()
