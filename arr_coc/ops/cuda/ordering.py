"""Keeps one writer's and many readers' work on the device in order, across streams."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from arr_coc.ops.cuda.driver import call
from arr_coc.ops.cuda.staging import NO_TIMING


class Order:
    """Events between streams: readers come after the last write, and a write after the reads that were given before.

    Leases order the host's calls; this orders what they left for the device to do.
    """

    def __init__(self, owned: ExitStack) -> None:
        """In the current context."""
        self._owned = owned
        self._written = self._event()
        self._has_written = False
        self._reads: dict[int, Any] = {}
        self._spare: list[Any] = []
        self._lock = threading.Lock()

    def before_write(self, stream: int) -> None:
        """What the stream is given from now on comes after every read."""
        with self._lock:
            for event in self._reads.values():
                call("cuStreamWaitEvent", stream, event, 0)
            self._spare.extend(self._reads.values())
            self._reads.clear()
        self.before_read(stream)

    def after_write(self, stream: int) -> None:
        call("cuEventRecord", self._written, stream)
        self._has_written = True

    def before_read(self, stream: int) -> None:
        """What the stream is given from now on comes after the last write."""
        if self._has_written:
            call("cuStreamWaitEvent", stream, self._written, 0)

    def after_read(self, stream: int) -> None:
        """The next write comes after what the stream has been given so far."""
        with self._lock:
            if stream not in self._reads:
                self._reads[stream] = self._spare.pop() if self._spare else self._event()
            call("cuEventRecord", self._reads[stream], stream)

    def _event(self) -> Any:
        event = call("cuEventCreate", NO_TIMING)
        self._owned.callback(call, "cuEventDestroy", event)
        return event
