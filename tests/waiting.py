"""Waiting for what other processes and threads do, with a limit, and where they may meet."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

LIMIT_S = 120.0
"""Only what hangs takes this long: a test that waits for an event never measures the machine's speed."""

LIMIT_MS = int(LIMIT_S * 1000)


def until(seen: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Looks again and again until `seen` says so; fails where that takes too long."""
    deadline_s = time.monotonic() + limit_s
    while not seen():
        assert time.monotonic() < deadline_s, f"nothing came of it within {limit_s:g} s"
        time.sleep(0.01)


def free_port() -> int:
    """A TCP port of this machine that nobody listens at."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port
