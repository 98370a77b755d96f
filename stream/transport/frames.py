"""Frames from another program, over ZeroMQ."""

from __future__ import annotations

import zmq

from stream.errors import TransportError
from stream.limits import PART_BYTES_MAX
from stream.transport.curve import ClientCurve
from stream.transport.link import _PeerWatch

QUEUE_MESSAGES = 4
"""Frames that may wait in the socket; only the newest is wanted, or the sender shall wait."""

DRAIN_LIMIT = 64
"""Messages taken out at once at most, so that a flood cannot hold the reader."""


class FrameSocket:
    """The end that connects to a sender of frames. Belongs to the thread that made it.

    It subscribes to a PUB socket, and `receive` gives the newest message: what came before it is counted. (ZMQ_CONFLATE
    would keep the last part of a message only.) With `pull` it takes every message of a PUSH socket, which then waits.
    """

    def __init__(self, endpoint: str, *, pull: bool = False, curve: ClientCurve | None = None) -> None:
        """Raises TransportError for an address to which no socket can be connected."""
        self._drains = not pull
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PULL if pull else zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, PART_BYTES_MAX)
        self._watch = _PeerWatch(self._socket)
        if curve is not None:
            curve.apply(self._socket)
        try:
            self._socket.connect(endpoint)
            if self._drains:
                self._socket.subscribe(b"")
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(
                f"cannot connect to {endpoint}: {zmq.strerror(error.errno or 0)}; check the address"
            ) from error

    def receive(self, timeout_ms: int) -> tuple[list[memoryview] | None, int]:
        """The parts of the newest message, None without one within the time limit; and how many came before it."""
        self._watch.look()
        if not self._socket.poll(timeout_ms):
            return None, 0
        newest, passed = None, -1
        for _ in range(DRAIN_LIMIT if self._drains else 1):
            try:
                newest = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            passed += 1
        return None if newest is None else [part.buffer for part in newest], max(passed, 0)

    @property
    def met(self) -> bool:
        """A sender has been reached, and it accepted this end."""
        return self._watch.met

    @property
    def refused(self) -> bool:
        """The sender did not accept this end's keys, or wants some."""
        return self._watch.refused

    def close(self) -> None:
        """Closes the socket at once."""
        self._watch.close()
        self._socket.close(linger=0)
        self._context.term()
