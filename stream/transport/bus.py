"""The bus that brings events from the stages to the main thread."""

from __future__ import annotations

import zmq

EVENT_QUEUE = 256
"""Events that may wait for the main thread before the allocate stage waits."""

LINGER_MS = 1000
"""How long a closing end still tries to hand over what it was told to send."""


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
