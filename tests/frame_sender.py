"""A program that sends frames over ZeroMQ, for tests of what receives them."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import zmq

EVERY_S = 0.003

Message = list[bytes]


def message(value: int = 90, width: int = 64, height: int = 48, **header: Any) -> Message:
    """A frame of one shade in rgb24; `header` adds fields or replaces them, None leaves one out."""
    fields = {"v": 1, "width": width, "height": height, "format": "rgb24", **header}
    fields = {name: field for name, field in fields.items() if field is not None}
    return [msgspec.msgpack.encode(fields), np.full((height, width, 3), value, np.uint8).tobytes()]


class Sender:
    """Sends `now`, again and again, from a thread that owns the socket; nothing while it is None."""

    def __init__(
        self,
        now: Message | None,
        kind: int = zmq.PUB,
        endpoint: str = "tcp://127.0.0.1:*",
        curve: tuple[bytes, bytes] | None = None,
    ) -> None:
        self.now = now
        self.sent = 0
        self._kind, self._asked, self._curve = kind, endpoint, curve
        self._bound = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sender:
        self._thread.start()
        assert self._bound.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        context = zmq.Context()
        socket = context.socket(self._kind)
        socket.setsockopt(zmq.SNDHWM, 2)
        if self._curve is not None:
            socket.curve_secretkey, socket.curve_publickey, socket.curve_server = *self._curve, True
        socket.bind(self._asked)
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._bound.set()
        while not self._ending.wait(EVERY_S):
            if self.now is not None and socket.poll(10, zmq.POLLOUT):
                socket.send_multipart(self.now)
                self.sent += 1
        socket.close(linger=0)
        context.term()
