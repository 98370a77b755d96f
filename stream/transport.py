"""The sockets: links between stages over inproc and ipc, and the bus that brings events to the main thread.

The only module that imports zmq. Every socket is made, used and closed by one thread; every wait has a time limit.
Backpressure is not left to ZeroMQ: senders hold a `Mailbox` and wait for credits.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
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

EVENT_QUEUE = 256
"""Events that may wait for the main thread before the allocate stage waits."""

IPC_PATH_MAX_BYTES = 107
"""A Unix socket's path may be this long on Linux (sun_path, less the final zero)."""


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


class EventSource:
    """The main thread's end of the event bus."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, EVENT_QUEUE // 2)
        self._socket.bind(endpoint)

    def receive(self, timeout_ms: int) -> bytes | None:
        """The next encoded event, or None within the time limit."""
        if not self._socket.poll(timeout_ms):
            return None
        return self._socket.recv(zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close(linger=0)


class EventSink:
    """A stage's end of the event bus; belongs to the thread that made it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, EVENT_QUEUE // 2)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.connect(endpoint)

    def send(self, event: bytes, timeout_ms: int) -> bool:
        """Whether the event was taken within the time limit."""
        try:
            self._socket.send(event, zmq.NOBLOCK)
        except zmq.Again:
            return bool(self._socket.poll(timeout_ms, zmq.POLLOUT)) and self.send(event, 0)
        return True

    def close(self) -> None:
        self._socket.close()


class Transport:
    """The ZeroMQ context of one process and the names of its links."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)

    def link(self, endpoint: str, *, bind: bool = False, check: Callable[[], None] | None = None) -> Link:
        """One end of the channel at `endpoint`; make it in the thread that uses it."""
        return Link(self._context, endpoint, bind=bind, check=check)

    def event_source(self, endpoint: str) -> EventSource:
        return EventSource(self._context, endpoint)

    def event_sink(self, endpoint: str) -> EventSink:
        return EventSink(self._context, endpoint)

    def close(self) -> None:
        """Ends the context; every socket must have been closed."""
        self._context.term()


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """A directory that only this user can enter (0700), for ipc sockets; gone at the end.

    Raises TransportError where the system's temporary directory has too long a name for a Unix socket.
    """
    path = Path(tempfile.mkdtemp(prefix="arr-coc-"))
    try:
        if len(os.fsencode(ipc_endpoint(path))) - len("ipc://") > IPC_PATH_MAX_BYTES:
            raise TransportError(f"{path} is too long for a Unix socket; set TMPDIR to a shorter path")
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def ipc_endpoint(directory: Path) -> str:
    """The address of the answer stage's socket in `directory`."""
    return f"ipc://{directory / 'answer'}"
