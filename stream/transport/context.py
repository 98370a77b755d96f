"""`Transport` (one ZeroMQ context a process), private ipc directory, `EventSender/EventReceiver`."""

from __future__ import annotations

from collections.abc import Callable

import zmq
from zmq.auth.thread import ThreadAuthenticator

from stream.transport.links import Link, LinkObserver, ServerLink
from stream.transport.security import ClientCurve, ServerCurve

EVENT_QUEUE = 256
"""Events that may wait for the main thread before the allocate stage waits."""

LINGER_MS = 1000
"""How long a closing end still tries to hand over what it was told to send."""


class EventReceiver:
    """Main thread's end of the event bus."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, EVENT_QUEUE // 2)
        self._socket.bind(endpoint)

    def receive(self, timeout_ms: int) -> bytes | None:
        """Return the next encoded event, or None within the time limit."""
        if not self._socket.poll(timeout_ms):
            return None
        return self._socket.recv(zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close(linger=0)


class EventSender:
    """Stage's end of the event bus; belongs to the thread that made it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, EVENT_QUEUE // 2)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.connect(endpoint)

    def send(self, event: bytes, timeout_ms: int) -> bool:
        """Send an event; return False if it was not taken within the time limit."""
        try:
            self._socket.send(event, zmq.NOBLOCK)
        except zmq.Again:
            return bool(self._socket.poll(timeout_ms, zmq.POLLOUT)) and self.send(event, 0)
        return True

    def close(self) -> None:
        self._socket.close()


class Transport:
    """ZeroMQ context of one process, which makes all of its sockets."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._authenticator: ThreadAuthenticator | None = None

    @property
    def context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """For the other sockets of this package."""
        return self._context

    def require_curve(self, curve: ServerCurve) -> None:
        """Let sockets with CURVE take only clients whose public key is in `curve.clients`."""
        if self._authenticator is None:
            self._authenticator = ThreadAuthenticator(self._context)
            self._authenticator.start()
        self._authenticator.configure_curve(domain="*", location=str(curve.clients))

    def link(
        self,
        endpoint: str,
        *,
        bind: bool = False,
        check: Callable[[], None] | None = None,
        curve: ClientCurve | None = None,
        watched: bool = False,
        observer: LinkObserver | None = None,
    ) -> Link:
        """Return one end of the channel at `endpoint`; make it in the thread that uses it."""
        return Link(self._context, endpoint, bind=bind, check=check, curve=curve, watched=watched, observer=observer)

    def server_link(self, endpoint: str, curve: ServerCurve | None = None) -> ServerLink:
        """Return the end of a channel that many links may reach; make it in the thread that uses it."""
        if curve is not None:
            self.require_curve(curve)
        return ServerLink(self._context, endpoint, curve=curve)

    def event_receiver(self, endpoint: str) -> EventReceiver:
        return EventReceiver(self._context, endpoint)

    def event_sender(self, endpoint: str) -> EventSender:
        return EventSender(self._context, endpoint)

    def close(self) -> None:
        """End the context; every socket must have been closed."""
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()
