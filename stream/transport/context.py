"""The ZeroMQ context of one process."""

from __future__ import annotations

from collections.abc import Callable

import zmq
from zmq.auth.thread import ThreadAuthenticator

from stream.transport.bus import EventSink, EventSource
from stream.transport.curve import ClientCurve, ServerCurve
from stream.transport.link import Link, Tap
from stream.transport.port import Port


class Transport:
    """The ZeroMQ context of one process and the names of its links."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._authenticator: ThreadAuthenticator | None = None

    @property
    def context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """For the other sockets of this package."""
        return self._context

    def guard(self, curve: ServerCurve) -> None:
        """From here on sockets with CURVE take only clients whose public key is in `curve.clients`."""
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
        tap: Tap | None = None,
    ) -> Link:
        """One end of the channel at `endpoint`; make it in the thread that uses it."""
        return Link(self._context, endpoint, bind=bind, check=check, curve=curve, watched=watched, tap=tap)

    def port(self, endpoint: str, curve: ServerCurve | None = None) -> Port:
        """The end of a channel that many links may reach; make it in the thread that uses it."""
        if curve is not None:
            self.guard(curve)
        return Port(self._context, endpoint, curve=curve)

    def event_source(self, endpoint: str) -> EventSource:
        return EventSource(self._context, endpoint)

    def event_sink(self, endpoint: str) -> EventSink:
        return EventSink(self._context, endpoint)

    def close(self) -> None:
        """Ends the context; every socket must have been closed."""
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()
