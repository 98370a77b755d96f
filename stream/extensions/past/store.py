"""Store of one file: batches of records, each in one transaction, and retention after it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from stream.clock import AgingClock
from stream.extensions.past.moments import UNIX_MS_MAX, ClipFiles, Moment, MomentExtension, PastRun, Record, RunEnded
from stream.extensions.past.retention import Limits, retain
from stream.extensions.past.schema import connect_writer, transaction

MS_PER_S = 1000


class PastStore:
    """The file at `path`, open for writing; made if it is not there. For one thread.

    Other processes may have it open as well: a batch waits until theirs is written. Raises PastError and
    sqlite3.Error, as all methods.
    """

    def __init__(
        self, path: str, limits: Limits | None = None, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits or Limits()
        self._connection = connect_writer(path)
        ((newest_ms,),) = self._connection.execute(
            "SELECT max(last_ms) FROM moment WHERE last_ms BETWEEN 0 AND ?", (UNIX_MS_MAX,)
        )
        if newest_ms is None:
            newest_s = None
        else:
            newest_s = newest_ms / MS_PER_S
        self._clock = AgingClock(newest_s, path, monotonic_s)

    def write(self, records: Sequence[Record]) -> None:
        """Write a batch: all of it is in the file when the call returns, or none."""
        with transaction(self._connection):
            for record in records:
                self._put(record)

    def retain(self, now_ms: int, records_written: int = 0) -> None:
        """Enforce the limits at Unix time `now_ms`, after a batch of `records_written`; see `retain`. The age counts
        once the clock is trusted."""
        limits = self._limits
        if limits.max_days is not None and not self._clock.is_trusted(now_ms / MS_PER_S):
            limits = replace(limits, max_days=None)
        retain(self._connection, limits, now_ms, records_written)

    def close(self) -> None:
        """Close the file. The last one to close it puts the write-ahead log into the file."""
        self._connection.close()

    def _put(self, record: Record) -> None:
        run = self._run(record.run)
        if isinstance(record, Moment):
            self._put_moment(run, record)
        elif isinstance(record, MomentExtension):
            self._connection.execute(
                "UPDATE moment SET last_ms = max(last_ms, ?), end_s = max(end_s, ?), times = times + 1 "
                "WHERE run = ? AND number = ?",
                (record.unix_ms, record.end_s, run, record.number),
            )
        elif isinstance(record, ClipFiles):
            self._connection.execute(
                "UPDATE moment SET clip_picture = ?, clip_video = ? WHERE run = ? AND number = ?",
                (record.picture, record.video, run, record.number),
            )
        else:
            assert isinstance(record, RunEnded)
            self._connection.execute(
                "UPDATE run SET ended_ms = ?, outcome = ? WHERE id = ?", (record.unix_ms, record.outcome, run)
            )

    def _put_moment(self, run: int, moment: Moment) -> None:
        cursor = self._connection.execute(
            "INSERT INTO moment (run, number, kind, unix_ms, last_ms, frame_index, pts_s, start_s, end_s, text, "
            "question, watch, yes, fields) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (
                *(run, moment.number, moment.kind, moment.unix_ms, moment.unix_ms, moment.frame_index, moment.pts_s),
                *(moment.start_s, moment.end_s, moment.text, moment.question, moment.watch, moment.yes, moment.fields),
            ),
        )
        if moment.jpeg is not None and cursor.rowcount > 0:
            self._connection.execute(
                "INSERT INTO picture VALUES (?, ?)", (cursor.lastrowid, sqlite3.Binary(moment.jpeg))
            )

    def _run(self, run: PastRun) -> int:
        """Return the row of a run, which is added first unless it is there."""
        row = self._row(run)
        if row is None:
            if run.continues:
                # this run repeats the newest one of this camera and source if that was interrupted
                last = self._connection.execute(
                    "SELECT id, outcome FROM run WHERE camera = ? AND source = ? ORDER BY id DESC LIMIT 1",
                    (run.camera, run.source),
                ).fetchone()
                if last is not None and last[1] != "finished":
                    self._connection.execute("DELETE FROM moment WHERE run = ?", (last[0],))
                    self._connection.execute("DELETE FROM run WHERE id = ?", (last[0],))
            self._connection.execute(
                "INSERT INTO run (key, camera, source, model, began_ms) VALUES (?, ?, ?, ?, ?)",
                (run.key, run.camera, run.source, run.model, run.began_ms),
            )
            row = self._row(run)
            assert row is not None
        return row

    def _row(self, run: PastRun) -> int | None:
        row = self._connection.execute("SELECT id FROM run WHERE key = ?", (run.key,)).fetchone()
        return None if row is None else int(row[0])
