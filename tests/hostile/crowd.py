"""A crowd of connections that send nothing, and one that sends too much."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

CROWD = 1000
ROOM = 2 * CROWD + 500
"""Descriptors: both ends of every connection are in this process."""


def room_for_a_crowd() -> bool:
    """Whether this process may have that many connections; raises the limit if needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < ROOM <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ROOM, hard))
    return max(soft, resource.getrlimit(resource.RLIMIT_NOFILE)[0]) >= ROOM


@contextmanager
def half_open(endpoint: str, first: bytes = b"", count: int = CROWD) -> Iterator[None]:
    """So many connections that have sent `first` and nothing more."""
    host, port = endpoint.removeprefix("tcp://").removeprefix("http://").rsplit(":", 1)
    with ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=30.0))
            if first:
                connection.sendall(first)
        yield
