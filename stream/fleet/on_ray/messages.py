"""Messages between the command and its hosts on a cluster. Imports neither torch nor ray."""

from __future__ import annotations

import msgspec


class HostIdentity(msgspec.Struct, frozen=True):
    """Host of a camera. `ahead_ns` is by how much the Unix time of its node is ahead of its monotonic time."""

    node: str
    address: str
    version: str
    ahead_ns: int


class ServerState(msgspec.Struct, frozen=True):
    """State of an answer server: "loading", "ok", "draining", "stalled", "drained", "lost" (it does not reply), or
    "failed" with class and message of the error. `wait_p95_s`: p95 of the wait for a turn over the last minute."""

    status: str
    endpoint: str = ""
    wait_p95_s: float = 0.0
    error: str = ""
    message: str = ""
