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
from itertools import islice

from arr_coc.errors import counted
from stream import logs
from stream.errors import PastError
from stream.extensions.past.moments import Moment, Record
from stream.extensions.past.retention import Limits
from stream.extensions.past.schema import reason_of
from stream.extensions.past.store import PastStore

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


class PastWriter:
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
        self.path = path
        self.records_written = self.moments_lost = 0
        self._limits = limits
        self._prepare = prepare
        self._batch_s = batch_s
        self._retry_s = retry_s
        self._unix_ms = unix_ms
        self._changed = threading.Condition()
        self._waiting: deque[Record] = deque()
        self._waiting_bytes = 0
        self._closing = self._final_attempt = False
        self._failures = 0
        self._reported: str | None = None
        self._store: PastStore | None = None
        self._file: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._run, name="remember", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Write a record with the next batch."""
        with self._changed:
            self._waiting.append(record)
            self._waiting_bytes += _picture_bytes(record)
            self._trim()
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, for at most CLOSE_LIMIT_S; a file that could not be written is tried once more."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_LIMIT_S)
        if self._thread.is_alive():
            log.warning("the last moments could not be written to %s in time", self.path)

    def _trim(self) -> None:
        """Drop the oldest records that are too many, and the oldest pictures that are too large together."""
        while len(self._waiting) > WAITING_RECORDS:
            dropped = self._waiting.popleft()
            self._waiting_bytes -= _picture_bytes(dropped)
            self.moments_lost += isinstance(dropped, Moment)
        at = 0
        while self._waiting_bytes > WAITING_BYTES:
            record = self._waiting[at]
            if isinstance(record, Moment):
                self._waiting_bytes -= _picture_bytes(record)
                self._waiting[at] = replace(record, jpeg=None)
            at += 1

    def _run(self) -> None:
        try:
            self._write()  # a file that cannot be used is reported before the model is loaded
            while self._wait():
                self._write()
        except Exception:
            log.warning("%s takes no more moments; the run goes on", self.path, exc_info=True)
        finally:
            if self._store is not None:
                self._store.close()
            self.moments_lost += sum(isinstance(record, Moment) for record in self._waiting)
            if self.records_written:
                logs.say(f"wrote {self.path}", event="wrote", path=self.path)
            if self.moments_lost:
                say = f"note: {counted(self.moments_lost, 'moment')} could not be written to {self.path!r}"
                logs.say(say, "warning", event="remember", path=self.path, lost=self.moments_lost)

    def _wait(self) -> bool:
        """Wait for records and then for others of their batch, or for IDLE_S; return False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing, IDLE_S)
            if self._closing:
                is_over = self._final_attempt
                self._final_attempt = self._failures > 0
                return bool(self._waiting) and not is_over
            pause_s = self._batch_s
            at_once = BATCH_RECORDS
            if self._failures:
                first_s, longest_s = self._retry_s
                pause_s = min(longest_s, first_s * 2 ** min(self._failures - 1, 10))
                at_once = WAITING_RECORDS + 1
            if self._waiting:
                self._changed.wait_for(lambda: len(self._waiting) >= at_once or self._closing, pause_s)
            return True

    def _write(self) -> None:
        """Write a batch, or only enforce the limits; if that fails, the records wait for another attempt."""
        with self._changed:
            batch = list(islice(self._waiting, BATCH_RECORDS))
            for record in batch:
                self._waiting.popleft()
                self._waiting_bytes -= _picture_bytes(record)
        batch = [self._prepare(record) if isinstance(record, Moment) else record for record in batch]
        try:
            store = self._opened()
            if batch:
                store.write(batch)
            count = len(batch)
            batch = []
            self.records_written += count
            store.retain(self._unix_ms(), count)
        except (PastError, sqlite3.Error) as error:
            log.debug("%s cannot be written", self.path, exc_info=True)
            self._give_back(batch)
            self._fail(error)
            return
        if self._reported is not None:
            logs.say(f"{self.path!r} takes moments again", event="remember", path=self.path)
        self._failures = 0
        self._reported = None
        self._final_attempt = False

    def _opened(self) -> PastStore:
        """Return the store; opened anew if its file was removed or replaced."""
        if self._store is not None and self._file != _identity(self.path):
            self._store.close()
            self._store = None
        if self._store is None:
            self._store = PastStore(self.path, self._limits)
            self._file = _identity(self.path)
        return self._store

    def _give_back(self, batch: list[Record]) -> None:
        with self._changed:
            self._waiting.extendleft(reversed(batch))
            self._waiting_bytes += sum(map(_picture_bytes, batch))
            self._trim()

    def _fail(self, error: Exception) -> None:
        """Close the file until the next attempt, and report each new reason once."""
        self._failures += 1
        if self._store is not None:
            self._store.close()
            self._store = None
        if isinstance(error, PastError):
            reason = error.problem
        else:
            reason = f"{self.path!r} cannot be written: {reason_of(error)}"
        if reason == self._reported or ("locked" in reason and self._failures < 3):
            return
        self._reported = reason
        text = f"note: {reason}; the run goes on, and the file is tried again"
        logs.say(text, "warning", event="remember", path=self.path, reason=reason)


def _picture_bytes(record: Record) -> int:
    if isinstance(record, Moment) and record.jpeg is not None:
        return len(record.jpeg)
    return 0


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
