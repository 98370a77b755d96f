"""A guard of connections whose clock a test moves: what is late is closed when the test says so."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress

from arr_coc.types import NS_PER_S
from stream.http.guard import ConnectionGuard, GuardLimits
from tests.support.clock import FakeClock
from tests.support.network import LIMIT_S

STEP_S = 60
POLL_S = 0.01


class TimeUp:
    """A guard that looks at its connections all the time, for which time goes only in these methods."""

    def __init__(self, connections: int) -> None:
        self._clock = FakeClock()
        self.guard = ConnectionGuard(
            "the server", GuardLimits(connections, of_a_peer=connections, check_s=POLL_S), self._clock
        )

    def received(self, connection: socket.socket) -> bytes:
        """Return what comes on a connection until it is closed, while time goes."""
        received = b""
        connection.settimeout(POLL_S)
        end_s = time.monotonic() + LIMIT_S
        with suppress(ConnectionResetError):
            while True:
                self._clock.advance(STEP_S * NS_PER_S)
                assert time.monotonic() < end_s, "the connection stays open"
                with suppress(TimeoutError):
                    if not (part := connection.recv(65536)):
                        break
                    received += part
        return received

    def until(self, condition: Callable[[], bool]) -> None:
        """Let time go until a condition holds."""
        end_s = time.monotonic() + LIMIT_S
        while not condition():
            self._clock.advance(STEP_S * NS_PER_S)
            assert time.monotonic() < end_s
            time.sleep(POLL_S)
