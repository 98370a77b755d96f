"""The answer stage's end: one socket that many frame processes reach."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy.typing as npt
import zmq

from stream.errors import OutputError, TransportError
from stream.limits import PART_BYTES_MAX
from stream.messages import Message, decode, encode
from stream.transport.bind import bind_output
from stream.transport.curve import ServerCurve
from stream.transport.link import (
    LINGER_MS,
    Received,
    keep_alive,
    rest_of,
    send_arrays,
)

log = logging.getLogger(__name__)

Client: TypeAlias = bytes
"""What ZeroMQ calls one connected peer."""

WAITING_MAX = 8
"""Messages of one client that may wait in the socket: whoever keeps to its turns has one packet on its way."""

REPLIES_WAITING_MAX = 64
"""Messages to one client that may wait."""

PEERS_NAMED = 16
"""Senders of what cannot be read that are named in the log, once each."""

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
            (zmq.SNDHWM, REPLIES_WAITING_MAX),
            (zmq.RCVHWM, WAITING_MAX),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.MAXMSGSIZE, PART_BYTES_MAX),
            (zmq.SNDTIMEO, SEND_WAIT_MS),
        ):
            self._socket.setsockopt(option, value)
        keep_alive(self._socket)
        if curve is not None:
            curve.apply(self._socket)
        self.unreadable = 0
        self._named: set[str] = set()
        try:
            bind_output(self._socket, endpoint)
        except OutputError as error:
            self._socket.close(linger=0)
            raise TransportError(str(error)) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self, timeout_ms: int = 0) -> tuple[Client, Received] | None:
        """The next message and who sent it, or None within the time limit.

        What cannot be read is counted and dropped; its sender is named once in the log.
        """
        if timeout_ms and not self._socket.poll(timeout_ms):
            return None
        try:
            name = self._socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        parts = rest_of(self._socket)
        try:
            return name.bytes, Received(decode(parts[0] if parts else b""), parts[1:])
        except TransportError as error:
            self.unreadable += 1
            self._tell_of(name, error)
            return None

    def _tell_of(self, name: zmq.Frame, error: TransportError) -> None:
        try:
            peer = str(name.get("Peer-Address")) or "a process of this machine"
        except zmq.ZMQError:
            peer = "a process of this machine"
        if peer not in self._named and len(self._named) < PEERS_NAMED:
            self._named.add(peer)
            log.warning("%s sends what cannot be read, and is dropped: %s", peer, error)

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
