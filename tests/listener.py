"""Somebody who listens to a published run, for tests: a plain ZeroMQ subscriber."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import zmq

from tests.waiting import LIMIT_S


class Listener:
    """Hears one publisher."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket

    def next(self, topic: str = "", limit_s: float = LIMIT_S) -> Any:
        """The next message of a topic, as a robot would see it. Fails where none comes."""
        said = self.next_or_none(topic, limit_s)
        assert said is not None, f"no {topic or 'message'} within {limit_s} s"
        return said

    def next_or_none(self, topic: str = "", limit_s: float = LIMIT_S) -> Any:
        end_s = time.monotonic() + limit_s
        while (left_s := end_s - time.monotonic()) > 0:
            if self.socket.poll(int(left_s * 1000) + 1):
                heard, body = self.socket.recv_multipart()
                if not topic or heard.decode() == topic:
                    return msgspec.msgpack.decode(body)
        return None


@contextmanager
def listening(
    endpoint: str,
    *topics: str,
    prepare: Callable[[zmq.Socket[bytes]], None] = lambda socket: None,
) -> Iterator[Listener]:
    """A subscriber to the topics, or to all of them; `prepare` is given the socket before it connects."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.SUB)
    prepare(socket)
    for topic in topics or ("",):
        socket.setsockopt_string(zmq.SUBSCRIBE, topic)
    socket.connect(endpoint)
    try:
        yield Listener(socket)
    finally:
        socket.close(linger=0)
        context.term()
