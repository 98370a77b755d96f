"""Schema of the file, and connections to it: one that writes, and read-only ones."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from urllib.parse import quote

from stream.errors import PastError

VERSION = 2
"""Version of the schema. It grows if an older program could no longer write or read the file."""

APPLICATION_ID = 0x41524350
"""Number in the header of the file (`PRAGMA application_id`), "ARCP": it is this program's."""

BUSY_MS = 5000
"""Longest wait for another writer of the file; a batch takes milliseconds."""

WAL_BYTES_MAX = 4 << 20
"""Size to which the write-ahead log is cut back once its pages are in the file."""

ROW_BYTES_MAX = 1 << 20
"""Longest row, text, picture or statement of SQL (SQLITE_LIMIT_LENGTH). The longest that a run writes have a third."""

OPEN_LIMIT_S = 5.0
"""Time limit of opening a file."""

STEPS_A_CHECK = 10_000
"""Instructions of SQLite between two looks at the clock: a millisecond or less."""

TABLES = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, camera TEXT NOT NULL, source TEXT NOT NULL, model TEXT NOT NULL,
    began_ms INTEGER NOT NULL, ended_ms INTEGER, outcome TEXT
);
CREATE TABLE moment (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES run (id), number INTEGER NOT NULL, kind TEXT NOT NULL,
    unix_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL, frame_index INTEGER NOT NULL, pts_s REAL NOT NULL,
    start_s REAL NOT NULL, end_s REAL NOT NULL, text TEXT NOT NULL, question TEXT NOT NULL, watch TEXT NOT NULL,
    yes REAL, fields TEXT, times INTEGER NOT NULL DEFAULT 1, clip_picture TEXT, clip_video TEXT, UNIQUE (run, number)
);
CREATE INDEX moment_time ON moment (unix_ms);
CREATE TABLE picture (moment INTEGER PRIMARY KEY REFERENCES moment (id), jpeg BLOB NOT NULL);
CREATE TABLE total (picture_bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE VIRTUAL TABLE words USING fts5 (
    text, content = 'moment', content_rowid = 'id', tokenize = 'porter unicode61 remove_diacritics 2'
);
CREATE TRIGGER moment_added AFTER INSERT ON moment BEGIN
    INSERT INTO words (rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER moment_removed AFTER DELETE ON moment BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.id, old.text);
    DELETE FROM picture WHERE moment = old.id;
END;
CREATE TRIGGER picture_added AFTER INSERT ON picture BEGIN
    UPDATE total SET picture_bytes = picture_bytes + length(new.jpeg);
END;
CREATE TRIGGER picture_removed AFTER DELETE ON picture BEGIN
    UPDATE total SET picture_bytes = picture_bytes - length(old.jpeg);
END;
"""
"""Tables of version 2. `moment.last_ms` is the time until which an answer held, `times` how often it was given;
`clip_picture` and `clip_video` are names of files in the run's folder of clips."""

SCHEMA_QUERY = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%'"
"""Query of the schema, without the statistics that ANALYZE makes; SQLite refuses such names to others."""

REASONS = {
    "not a database": "it is no SQLite file",
    "malformed": "it is damaged",
    "disk is full": "the disk is full",
    "readonly": "it is read-only",
    "unable to open": "it cannot be opened",
    "no such module: fts5": "the SQLite of this Python has no FTS5",
    "interrupted": "it takes too long",
    "too big": "a row of it is larger than any that a run writes",
}
"""Part of an error's text → what it means; the texts of Python 3.10 have no error codes beside them."""


FILE_MODE = 0o600
"""A new file is for its user alone: it shows what cameras saw."""


def connect_writer(path: str) -> sqlite3.Connection:
    """Return a connection that writes the file, made if it is not there; in autocommit mode.

    Raises PastError for a file of another program or a newer version, and sqlite3.Error.
    """
    with suppress(OSError):  # SQLite says what is wrong; a file that it makes could be read by others
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
    connection = sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None)
    try:
        _restrain(connection)
        if not _is_ours(connection, path):
            # the next two are kept in the file, and only as long as it is empty
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            with transaction(connection):
                if not _is_ours(connection, path):  # another run may have been sooner
                    for statement in _statements():
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version = {VERSION}")
        # a committed batch survives a power cut, too
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}")
        connection.set_progress_handler(None, 0)
        connection.execute("PRAGMA trusted_schema = ON")  # its triggers are ours, and write to a virtual table
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Context manager of a transaction that writes: all of it, or none if anything raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk ends a transaction by itself
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _reading(connection: sqlite3.Connection) -> Iterator[None]:
    """Context manager in which all reads see the file at one moment."""
    begins = not connection.in_transaction
    if begins:
        connection.execute("BEGIN")
    try:
        yield
    finally:
        if begins and connection.in_transaction:
            connection.execute("ROLLBACK")


def connect_reader(path: str) -> sqlite3.Connection:
    """Return a connection that only reads the file; for any thread, one at a time.

    Raises PastError if there is no such file, or it cannot be read.
    """
    if not os.path.exists(path):
        raise PastError(f"there is no file {path!r}; a run with --remember {path} writes it")
    address = f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode=ro"
    try:
        try:
            return _reader(address, path)
        except sqlite3.OperationalError:
            # in a read-only folder no shared memory can be made; with nothing in a log, none is needed
            if os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal"):
                raise
            return _reader(f"{address}&immutable=1", path)
    except sqlite3.Error as error:
        raise unusable(path, error) from error


def _reader(address: str, path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        address, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False, uri=True
    )
    try:
        _restrain(connection)
        connection.execute("PRAGMA query_only = ON")
        if not _is_ours(connection, path):
            raise PastError(f"{path!r} is empty: no run with --remember has written anything yet")
    except BaseException:
        connection.close()
        raise
    connection.row_factory = sqlite3.Row
    connection.text_factory = lambda data: data.decode(errors="replace")
    return connection


def _restrain(connection: sqlite3.Connection) -> None:
    """Bound what a file from elsewhere can cost before anything is read from it: rows, time, functions in a schema."""
    if sys.version_info >= (3, 11):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ROW_BYTES_MAX)
    limit_time(connection, OPEN_LIMIT_S)
    connection.execute("PRAGMA trusted_schema = OFF")


def limit_time(connection: sqlite3.Connection, limit_s: float) -> None:
    """Interrupt all that runs on a connection once a time from now has passed."""
    ends_s = time.monotonic() + limit_s
    connection.set_progress_handler(lambda: int(time.monotonic() > ends_s), STEPS_A_CHECK)


@cache
def _own_schema() -> frozenset[tuple[object, ...]]:
    """Return the rows of the schema of a new file."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in _statements():
            connection.execute(statement)
        return frozenset(connection.execute(SCHEMA_QUERY))


def _is_ours(connection: sqlite3.Connection, path: str) -> bool:
    """Return True if the file has the tables of this version, False if it is empty. Raises PastError otherwise.

    The schema must be the one of a new file, to the letter: a view in the place of a table, a trigger, or a column that
    is computed would run SQL of another program.
    """
    with _reading(connection):  # another run may be making the file
        tables = connection.execute(f"{SCHEMA_QUERY} LIMIT {len(_own_schema()) + 1}").fetchall()
        ((application,),) = connection.execute("PRAGMA application_id")
        ((version,),) = connection.execute("PRAGMA user_version")
    if not tables and not application:
        return False
    if application != APPLICATION_ID:
        raise PastError(f"{path!r} is the database of another program; name another file")
    if version != VERSION:
        raise PastError(
            f"{path!r} has version {version} of the tables, and this program knows {VERSION}; update the program, or "
            "name another file"
        )
    if set(map(tuple, tables)) != _own_schema():
        raise PastError(f"{path!r} has other tables or triggers than those that a run makes; name another file")
    return True


def _statements() -> list[str]:
    """Return the statements of `TABLES`: `executescript` would commit the transaction that it runs in."""
    statements = []
    rest = ""
    for line in TABLES.splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            statements.append(rest)
            rest = ""
    return statements


def unusable(path: str, error: Exception) -> PastError:
    """Return the error that reports why a file cannot be read, from one of SQLite or this module."""
    if isinstance(error, PastError):
        return error
    return PastError(f"cannot read {path!r}: {reason_of(error)}; name another file")


def reason_of(error: Exception) -> str:
    """Return the meaning of an error of SQLite, in a few words."""
    text = str(error)
    return next((meaning for part, meaning in REASONS.items() if part in text), text or type(error).__name__)
