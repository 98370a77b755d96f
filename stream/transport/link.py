"""One end of a two-way channel between two stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zmq

from stream.errors import TransportError
from stream.messages import AnyMessage, Message, decode, encode

SEND_SLICE_MS = 50
"""Longest single wait for room in a link's queue, before its owner is asked whether to go on."""

SEND_LIMIT_MS = 2000
"""Longest wait for room where the link has no owner to ask."""

LINGER_MS = 1000
"""How long a closing link still tries to hand over what it was told to send."""

QUEUE_MESSAGES = 64
"""Bound of each socket's own queue; data stay far below it, because they need credits."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message and the raw array parts that came with it."""

    message: AnyMessage
    parts: tuple[memoryview, ...] = ()


class Link:
    """One end of a two-way channel between two stages; belongs to the thread that made it.

    `check` is called again and again while a message waits for room; it raises to end the wait.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        bind: bool,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._check = check
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
        try:
            self._socket.bind(endpoint) if bind else self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._socket.close(linger=0)
            raise TransportError(f"cannot {'open' if bind else 'reach'} {endpoint}: {error}") from error

    def send(self, message: Message, arrays: Sequence[npt.NDArray[Any]] = ()) -> None:
        """Hands over a message and its arrays, which must not change afterwards: large ones are not copied.

        Waits for room. Raises what `check` raises; without one, TransportError after SEND_LIMIT_MS.
        """
        waited_ms = 0
        while not self.offer(message, arrays):
            if self._check is not None:
                self._check()
            elif waited_ms >= SEND_LIMIT_MS:
                raise TransportError(f"nobody takes messages from {self._endpoint}")
            self._socket.poll(SEND_SLICE_MS, zmq.POLLOUT)
            waited_ms += SEND_SLICE_MS

    def offer(self, message: Message, arrays: Sequence[npt.NDArray[Any]] = ()) -> bool:
        """As `send` where there is room at once; whether there was."""
        try:
            self._socket.send(encode(message), zmq.NOBLOCK | (zmq.SNDMORE if arrays else 0))
        except zmq.Again:
            return False
        for index, array in enumerate(arrays, 1):
            more = zmq.SNDMORE if index < len(arrays) else 0
            self._socket.send(np.ascontiguousarray(array).data, more, copy=False)
        return True

    def receive(self, timeout_ms: int = 0) -> Received | None:
        """The next message, or None within the time limit. Raises TransportError for one that cannot be read."""
        if timeout_ms and not self._socket.poll(timeout_ms):
            return None
        try:
            head = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        parts: list[memoryview] = []
        while self._socket.getsockopt(zmq.RCVMORE):
            parts.append(self._socket.recv(zmq.NOBLOCK, copy=False).buffer)
        return Received(decode(head), tuple(parts))

    def close(self) -> None:
        """Closes the socket; what is still on its way gets LINGER_MS."""
        self._socket.close()


class Waiter:
    """Waits for any of several links; belongs to their thread."""

    def __init__(self, *links: Link) -> None:
        self._poller = zmq.Poller()
        for link in links:
            self._poller.register(link._socket, zmq.POLLIN)

    def wait(self, timeout_ms: int) -> bool:
        """Whether a message has come on some link within the time limit."""
        return bool(self._poller.poll(timeout_ms))
