"""Messages between the command and its hosts on a cluster. Imports neither torch nor ray."""

from __future__ import annotations

import threading
import time
from collections import deque

import msgspec

KeyFiles = dict[str, bytes]
"""Files of one half of a pair of CURVE keys, by their names, and contents."""


class CameraStart(msgspec.Struct, frozen=True):
    """Beginning of a camera on its host. `config` is its configuration in JSON, `servers` the places of answer servers
    (none where it has others), `targets` where they are now, `verdict` the answer to its standing query so far."""

    config: str
    keys: dict[str, bytes] = {}
    servers: int = 0
    targets: list[str | None] = []
    verdict: bool | None = None


class AnswersStart(msgspec.Struct, frozen=True):
    """Beginning of an answer server on its host; `config` in JSON, `model_loader` as "module:function"."""

    config: str
    keys: dict[str, bytes]
    model_loader: str


class HostIdentity(msgspec.Struct, frozen=True):
    """Host of a camera or an answer server. `incarnation` is another one after each restart; `ahead_ns` is by how much
    the Unix time of its node is ahead of its monotonic time."""

    incarnation: str
    node: str
    address: str
    version: str
    pid: int
    ahead_ns: int


class ServerState(msgspec.Struct, frozen=True):
    """State of an answer server: "waiting" (not begun), "loading", "ok", "draining", "stalled", "drained", or "failed"
    with class and message of the error. `wait_p95_s` is the p95 of the wait for a turn over the last minute."""

    status: str
    endpoint: str = ""
    clients: int = 0
    turns_waiting: int = 0
    wait_p95_s: float = 0.0
    error: str = ""
    message: str = ""


class ReportQueue:
    """Queue of reports of one sender to one receiver that acknowledges them, so that none is lost with a call.

    Holds `limit` at most: then the sender waits. For any thread.
    """

    def __init__(self, limit: int = 2_048, gather_s: float = 0.05) -> None:
        self._limit = limit
        self._gather_s = gather_s
        self._changed = threading.Condition()
        self._reports: deque[bytes] = deque()
        self._first = 0

    def put(self, report: bytes) -> None:
        """Append a report; waits while the queue is full."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._reports) < self._limit)
            self._reports.append(report)
            self._changed.notify_all()

    def take(self, after: int, wait_s: float) -> list[bytes]:
        """Return the reports from number `after` on, which acknowledges those before; waits so long for the first one.

        Those that come shortly after the first one come with it: a call costs more than a report.
        """
        with self._changed:
            while self._reports and self._first < after:
                self._reports.popleft()
                self._first += 1
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: bool(self._reports), wait_s):
                return []
        time.sleep(self._gather_s)
        with self._changed:
            return list(self._reports)
