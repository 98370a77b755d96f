"""Writer of one file in a separate thread, shared by all runs of this process that write it. No run waits for it."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from arr_coc.errors import counted
from stream import logs
from stream.errors import PastError
from stream.extensions.past.moments import Moment, Record
from stream.extensions.past.retention import Limits
from stream.extensions.past.schema import reason_of
from stream.extensions.past.store import PastStore
from stream.sinks.background import BackgroundSender, Outbox, Unreachable

BATCH_S = 1.0
"""Time that a record waits for others of its batch: all that a killed process loses."""

BATCH_RECORDS = 256
"""Records of a batch; with so many it waits no longer."""

WAITING_RECORDS = 4096
"""Records that wait while the file cannot be written; the oldest are dropped, and counted."""

WAITING_BYTES = 32 << 20
"""Bytes of pictures that wait; beyond it the oldest records lose theirs."""

IDLE_S = 60.0
"""Time without records after which the limits of age and size are enforced all the same."""

RETRY_S = 1.0
RETRY_MAX_S = 60.0
"""Wait before a file that could not be written is tried again, which doubles with each further failure; the longest."""

CLOSE_LIMIT_S = 5.0
"""Time limit for the disk at the end of a run."""

log = logging.getLogger(__name__)


class PastWriter(BackgroundSender[Record]):
    """Writer of the file at `path`, which may not be writable: then one line says so, the run goes on, and the file is
    tried again. Thread-safe; only `close` waits.

    `prepare` makes each record ready in the writer's thread, such as its picture small. `batch_s`: as BATCH_S.
    `unix_ms` returns the Unix time.
    """

    def __init__(
        self,
        path: str,
        limits: Limits | None = None,
        *,
        prepare: Callable[[Moment], Moment] = lambda moment: moment,
        batch_s: float = BATCH_S,
        retry_s: tuple[float, float] = (RETRY_S, RETRY_MAX_S),
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(
            "remember",
            Outbox(trim=_trim),
            "{reason}; the run goes on, and the file is tried again",
            "{path!r} takes moments again",
            retry_s,
            retry_at_end=True,
            path=path,
        )
        self.path = path
        self.records_written = 0
        self._limits = limits
        self._prepare = prepare
        self._batch_s = batch_s
        self._unix_ms = unix_ms
        self._store: PastStore | None = None
        self._file: tuple[int, int] | None = None
        self.start()

    def close(self) -> None:
        """Write what waits, for at most CLOSE_LIMIT_S; a file that could not be written is tried once more."""
        if not self.end(CLOSE_LIMIT_S):
            log.warning("the last moments could not be written to %s in time", self.path)

    def run(self) -> None:
        super().run()
        self._close_store()
        if self.records_written:
            logs.say(f"wrote {self.path}", event="wrote", path=self.path)
        moments_lost = self.outbox.dropped + sum(
            isinstance(record, Moment) for record in self.take(WAITING_RECORDS, 0.0)
        )
        if moments_lost:
            text = f"note: {counted(moments_lost, 'moment')} could not be written to {self.path!r}"
            logs.say(text, "warning", event="remember", path=self.path, lost=moments_lost)

    def serve(self) -> None:
        try:
            if not self.failures:  # a file that cannot be used is reported before the model is loaded
                self._write(self.take(BATCH_RECORDS, 0.0))
            while True:
                batch = self.take(BATCH_RECORDS, IDLE_S, 0.0 if self.failures else self._batch_s)
                if self.ending and not batch:
                    return
                self._write(batch)
        except Unreachable:
            raise
        except Exception:
            log.warning("%s takes no more moments; the run goes on", self.path, exc_info=True)

    def _write(self, batch: list[Record]) -> None:
        """Write a batch, or only enforce the limits; if that fails, the records wait for another attempt.

        Raises Unreachable.
        """
        batch = [self._prepare(record) if isinstance(record, Moment) else record for record in batch]
        try:
            # opened anew if its file was removed or replaced
            if self._store is not None and self._file != _identity(self.path):
                self._close_store()
            if self._store is None:
                self._store = PastStore(self.path, self._limits)
                self._file = _identity(self.path)
            store = self._store
            if batch:
                store.write(batch)
            count = len(batch)
            batch = []
            self.records_written += count
            store.retain(self._unix_ms(), count)
        except (PastError, sqlite3.Error) as error:
            log.debug("%s cannot be written", self.path, exc_info=True)
            self.put_first(batch)
            self._close_store()
            if isinstance(error, PastError):
                reason = error.problem
            else:
                reason = f"{self.path!r} cannot be written: {reason_of(error)}"
            if "locked" not in reason or self.failures >= 2:  # else another writer may only be slow
                self.lost(reason, each_reason=True)
            raise Unreachable from error
        self.reached()

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def _picture_bytes(record: Record) -> int:
    if isinstance(record, Moment) and record.jpeg is not None:
        return len(record.jpeg)
    return 0


def _trim(records: deque[Record]) -> int:
    """Drop the oldest records that are too many, and the oldest pictures that are too large together.

    Returns the number of moments that were dropped.
    """
    dropped = sum(isinstance(records.popleft(), Moment) for _ in range(len(records) - WAITING_RECORDS))
    excess = sum(map(_picture_bytes, records)) - WAITING_BYTES
    at = 0
    while excess > 0:
        record = records[at]
        if isinstance(record, Moment):
            excess -= _picture_bytes(record)
            records[at] = replace(record, jpeg=None)
        at += 1
    return dropped


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and number of a file; None if it is not there."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino


class SharedWriters:
    """Writers of this process, one for each file, each open as long as a run writes it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writers: dict[str, tuple[PastWriter, int]] = {}

    def acquire(self, path: str, make: Callable[[], PastWriter]) -> PastWriter:
        """Return the writer of a file, by `make` if no run writes it yet."""
        with self._lock:
            writer, users = self._writers.get(os.path.realpath(path)) or (make(), 0)
            self._writers[os.path.realpath(path)] = writer, users + 1
            return writer

    def release(self, path: str) -> None:
        """Close the writer of a file with its last run."""
        with self._lock:
            writer, users = self._writers.pop(os.path.realpath(path))
            if users > 1:
                self._writers[os.path.realpath(path)] = writer, users - 1
        if users == 1:
            writer.close()


WRITERS = SharedWriters()
"""The writers of this process."""
