"""Requests from other programs while a run goes on: one small message each, answered at once.

The end that binds is a ROUTER, so that a client that dies between request and reply holds up nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing

import zmq

from stream.errors import TransportError
from stream.transport.context import Transport
from stream.transport.curve import ClientCurve, ServerCurve
from stream.transport.served import ServedSocket

REQUEST_BYTES_MAX = 64 * 1024
"""Larger requests close their sender's connection."""

WAITING_MAX = 64
"""Requests, and replies to one client, that may wait."""

WAIT_MS = 100

REPLY_LIMIT_S = 3.0
"""How long a client waits for its reply."""


class ControlServer(ServedSocket):
    """Answers each request at `endpoint` with what `reply` makes of it, in a thread of its own.

    `reply` must return soon and raise nothing. Raises OutputError where the endpoint cannot be bound.
    """

    def __init__(self, endpoint: str, curve: ServerCurve | None, reply: Callable[[bytes], bytes]) -> None:
        super().__init__("control", zmq.ROUTER, endpoint, curve)
        self._reply = reply
        self._stop = threading.Event()
        self._closed = False
        try:
            self.endpoint = self.start()
        except BaseException:
            self.finish()
            raise

    @property
    def options(self) -> Mapping[int, int]:
        return {zmq.MAXMSGSIZE: REQUEST_BYTES_MAX, zmq.RCVHWM: WAITING_MAX, zmq.SNDHWM: WAITING_MAX}

    def serve(self, public: zmq.Socket[bytes]) -> None:
        while not self._stop.is_set():
            if public.poll(WAIT_MS):
                parts = public.recv_multipart()
                # A client's name, then for REQ an empty part; the reply goes back behind the same ones.
                envelope = parts[:2] if len(parts) > 2 and not parts[1] else parts[:1]
                public.send_multipart([*envelope, self._reply(parts[-1])])

    def close(self) -> None:
        """Ends the thread; may be called twice."""
        if not self._closed:
            self._closed = True
            self._stop.set()
            self.finish()


def request(endpoint: str, curve: ClientCurve | None, body: bytes, limit_s: float = REPLY_LIMIT_S) -> bytes:
    """The reply of the run at `endpoint`. Raises TransportError where none comes in time."""
    transport = Transport()
    try:
        with closing(transport.context.socket(zmq.REQ)) as client:
            client.setsockopt(zmq.LINGER, 0)
            client.setsockopt(zmq.MAXMSGSIZE, REQUEST_BYTES_MAX)
            if curve is not None:
                curve.apply(client)
            try:
                client.connect(endpoint)
            except zmq.ZMQError as error:
                raise TransportError(f"{endpoint!r} is no address for a socket: {error.strerror}") from error
            client.send(body)
            if not client.poll(round(limit_s * 1000)):
                keys = "" if curve is None else ", and that it was started with the keys that go with these"
                raise TransportError(
                    f"nobody answers at {endpoint} within {limit_s:g} s; see that a run with --control {endpoint} is "
                    f"going on{keys}"
                )
            return client.recv()
    finally:
        transport.close()
