"""Retention: the oldest moments are deleted by age and by the size of the file, a bounded portion after each batch."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from stream.extensions.past.moments import UNIX_MS_MAX
from stream.extensions.past.schema import transaction

DAY_MS = 86_400_000

MIB = 1 << 20

PORTION = 64
"""Least number of moments, or pictures, that are deleted at once."""

PICTURES_SHARE = 0.5
"""Share of the size that pictures may keep when the file is full: beyond it they are deleted before any text."""

FREE_PAGES_MAX = 64
"""Free pages that stay in the file for the next moments."""

PAGES_AT_ONCE = 256
"""Pages that are given back to the file system at once: 1 MiB."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Greatest age of a moment, in days, and greatest size of the file, in MiB; None for no limit."""

    max_days: float | None = None
    max_mib: float | None = None


def retain(connection: sqlite3.Connection, limits: Limits, now_ms: int, records_written: int = 0) -> None:
    """Delete a portion of what the limits forbid.

    Over the size, pictures go first, the oldest first, while they have more than PICTURES_SHARE of it; then moments.

    Args:
        connection: Connection to the file.
        limits: Greatest age and size.
        now_ms: Present Unix time.
        records_written: Size of the last batch; the portion is twice as many moments, at least PORTION.

    Raises:
        sqlite3.Error: The file cannot be written.
    """
    portion = max(PORTION, 2 * records_written)
    with_age = limits.max_days is not None and _oldest_ms(connection) < now_ms - limits.max_days * DAY_MS
    over = limits.max_mib is not None and used_bytes(connection) > limits.max_mib * MIB
    if with_age or over:
        with transaction(connection):
            if limits.max_days is not None and with_age:
                _delete_moments(connection, round(now_ms - limits.max_days * DAY_MS), portion)
            if limits.max_mib is not None and over:
                # a number whatever the rows hold
                ((pictures,),) = connection.execute("SELECT total(picture_bytes) FROM total")
                if pictures > limits.max_mib * MIB * PICTURES_SHARE:
                    connection.execute(
                        "DELETE FROM picture WHERE moment IN (SELECT moment FROM picture ORDER BY moment LIMIT ?)",
                        (portion,),
                    )
                else:
                    _delete_moments(connection, None, portion)
            connection.execute(
                "DELETE FROM run WHERE id IN (SELECT id FROM run WHERE began_ms < ? AND NOT EXISTS "
                "(SELECT 1 FROM moment WHERE moment.run = run.id) LIMIT ?)",
                (now_ms - DAY_MS, portion),
            )
    if _pragma(connection, "freelist_count") > FREE_PAGES_MAX:
        connection.execute(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})").fetchall()


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of the file without its free pages."""
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return pages * _pragma(connection, "page_size")


def _oldest_ms(connection: sqlite3.Connection) -> float:
    ((oldest,),) = connection.execute(
        "SELECT min(unix_ms) FROM moment WHERE unix_ms BETWEEN ? AND ?", (-UNIX_MS_MAX, UNIX_MS_MAX)
    )
    return float("inf") if oldest is None else float(oldest)


def _delete_moments(connection: sqlite3.Connection, before_ms: int | None, portion: int) -> None:
    connection.execute(
        "DELETE FROM moment WHERE id IN (SELECT id FROM moment WHERE ?1 IS NULL OR unix_ms < ?1 ORDER BY unix_ms "
        "LIMIT ?2)",
        (before_ms, portion),
    )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    ((value,),) = connection.execute(f"PRAGMA {name}")
    return int(value)
