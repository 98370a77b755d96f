"""Search: the words of a user as a query of FTS5, and what the file holds of a time; read-only and bounded."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from arr_coc.bounded_json import parse_json
from arr_coc.errors import counted
from stream.errors import PastError
from stream.extensions.past.moments import HELD_MAX_MS, UNIX_MS_MAX
from stream.extensions.past.schema import connect_reader, limit_time, unusable
from stream.untrusted import ANSWER_CHARS_MAX, Count, Share, Words

LIMIT_S = 5.0
"""Time limit of one query."""

FOUND_MAX = 1000
"""Most moments that one search returns."""

BAD_MAX = 1000
"""Most rows of one search that no run can have written; with more the file is refused."""

UnixMs = Annotated[int, Meta(ge=0, le=UNIX_MS_MAX)]
MediaS = Annotated[float, Meta(ge=-1e10, le=1e10)]  # three centuries

TERMS_MAX = 32
CHARS_MAX = 1000
"""Limits of a query."""

_TERM = re.compile(r'"([^"]*)"?|([^\s"]+)')

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
)
"""Letters of scripts without spaces between words, for which FTS5 has no words either."""


@dataclass(frozen=True, slots=True)
class Query:
    """Query: an expression of FTS5, and texts that must stand in the moment's text as they are; both may be empty."""

    match: str = ""
    parts: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Query:
        """Return the query of a user's words: all of them must be there, those in quotes beside each other. A word that
        ends with * stands for all that begin so.

        Nothing in the text is syntax of FTS5 or SQL. Raises PastError for a text without a word, or a very long one.
        """
        if len(text) > CHARS_MAX:
            raise PastError(f"a search has at most {CHARS_MAX} characters, not {len(text)}")
        matches = []
        parts = []
        for phrase, word in _TERM.findall(text):
            term = "".join(char for char in phrase or word if char.isprintable())
            if not any(char.isalnum() for char in term):
                continue
            if _UNSPACED.search(term):
                parts.append(term.rstrip("*"))
            else:
                matches.append(f'"{term}"' + "*" * (word.endswith("*")))
        if text.strip() and not matches and not parts:
            raise PastError(f"there is no word in {text!r}; give words, or words in quotes beside each other")
        if len(matches) + len(parts) > TERMS_MAX:
            raise PastError(f"a search has at most {TERMS_MAX} words; give fewer")
        return cls(" ".join(matches), tuple(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Search for moments that held at `since_ms` or later and began before `until_ms` (Unix time; None for no limit).

    `cameras` and `kinds` are those searched; empty for all. `before`: time and id of a moment, of which only earlier
    ones are wanted. The newest `limit` are returned.
    """

    query: Query = Query()
    since_ms: int | None = None
    until_ms: int | None = None
    cameras: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    before: tuple[int, int] | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMoment:
    """Moment of the file; fields as in `Moment`. It held until `last_ms`, and was given `times` times.

    `clip_picture` and `clip_video` are names of files in the run's folder of clips, which may have deleted them since.
    """

    id: int
    kind: Literal["answer", "match", "outage"]
    camera: Words
    source: Words
    run: Words
    unix_ms: UnixMs
    last_ms: UnixMs
    frame_index: Count
    pts_s: MediaS
    start_s: MediaS
    end_s: MediaS
    text: Words
    question: Words
    watch: Words
    yes: Share | None
    fields: Words | None
    times: Count
    clip_picture: Words | None
    clip_video: Words | None
    picture: bool


_TABLES = "moment m JOIN run r ON r.id = m.run"

_COLUMNS = (
    "m.id, m.kind, r.camera, r.source, r.key AS run, m.unix_ms, m.last_ms, m.frame_index, m.pts_s, m.start_s, m.end_s, "
    "m.text, m.question, m.watch, m.yes, m.fields, m.times, m.clip_picture, m.clip_video, "
    "EXISTS (SELECT 1 FROM picture p WHERE p.moment = m.id) AS picture"
)


class PastReader:
    """The file at `path`, open for reading, also while runs write it. Thread-safe: one query at a time.

    Each query ends after `limit_s`. Rows that no run can have written are left out and counted. Raises PastError, as
    all methods.
    """

    def __init__(self, path: str, limit_s: float = LIMIT_S) -> None:
        self.path = path
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._bad_rows: set[int] = set()
        self._connection = connect_reader(path)

    @property
    def notice(self) -> str | None:
        """Note about the rows that were left out, for the user; None if there were none."""
        if not self._bad_rows:
            return None
        return f"note: {counted(len(self._bad_rows), 'row')} of {self.path!r}, which no run has written, left out"

    def find(self, search: Search) -> list[FoundMoment]:
        """Return the moments that a search finds, the newest first."""
        where, values = _conditions(search)
        limit = max(1, min(search.limit, FOUND_MAX))
        moments: list[FoundMoment] = []
        with self._query() as connection:
            # one row at a time, so that a bad one costs no other
            ids = connection.execute(
                f"SELECT m.id FROM {_tables(search)} WHERE {where} ORDER BY m.unix_ms DESC, m.id DESC LIMIT ?",
                (*values, limit + BAD_MAX),
            )
            bad_rows = 0
            while len(moments) < limit and (row := ids.fetchone()) is not None:
                moment = _read_moment(connection, row[0])
                if moment is not None:
                    moments.append(moment)
                    continue
                self._bad_rows.add(row[0])
                bad_rows += 1
                if bad_rows > BAD_MAX:
                    raise PastError(f"{self.path!r} has too many rows that no run has written; name another file")
        return moments

    def count(self, search: Search, spans: int) -> list[int]:
        """Return the number of moments in each of `spans` equal parts of a search's time, which must have both ends."""
        assert search.since_ms is not None
        assert search.until_ms is not None
        where, values = _conditions(search)
        width_ms = max(1, -(-(search.until_ms - search.since_ms) // spans))
        with self._query() as connection:
            rows = connection.execute(
                f"SELECT (CAST(m.unix_ms AS INTEGER) - ?) / ? AS span, count(*) FROM {_tables(search)} WHERE {where} "
                f"AND {_POSSIBLE_TIME} GROUP BY span",
                (search.since_ms, width_ms, *values),
            ).fetchall()
        counts = [0] * spans
        for span, count in rows:
            counts[max(0, span)] += count  # one that began before may still have held
        return counts

    def span(self, search: Search) -> tuple[int, int, int] | None:
        """Return the times of the first and the last moment that a search finds, and their number; None for none."""
        where, values = _conditions(search)
        with self._query() as connection:
            first, last, count = connection.execute(
                f"SELECT min(m.unix_ms), max(m.unix_ms), count(*) FROM {_tables(search)} WHERE {where} "
                f"AND {_POSSIBLE_TIME}",
                values,
            ).fetchone()
        return (int(first), int(last), count) if count else None

    def cameras(self) -> list[str]:
        """Return the names of all cameras of the file."""
        with self._query() as connection:
            rows = connection.execute(
                "SELECT DISTINCT camera FROM run WHERE typeof(camera) = 'text' AND length(camera) <= ? ORDER BY camera "
                "LIMIT ?",
                (ANSWER_CHARS_MAX, FOUND_MAX),
            ).fetchall()
        return [row[0] for row in rows]

    def picture(self, moment: int) -> bytes | None:
        """Return the JPEG of a moment; None if it has none."""
        with self._query() as connection:
            row = connection.execute("SELECT jpeg FROM picture WHERE moment = ?", (moment,)).fetchone()
        if row is not None and isinstance(row[0], bytes):
            return row[0]
        return None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _query(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one query within the time limit."""
        with self._lock:
            limit_time(self._connection, self._limit_s)
            try:
                yield self._connection
            except sqlite3.Error as error:
                if "interrupted" in str(error):
                    raise PastError(f"the search takes longer than {self._limit_s:g} s; search less time") from error
                raise unusable(self.path, error) from error


_POSSIBLE_TIME = f"m.unix_ms BETWEEN 0 AND {UNIX_MS_MAX}"


def _read_moment(connection: sqlite3.Connection, number: int) -> FoundMoment | None:
    """Return the moment of a row; None if no run can have written it. Raises sqlite3.Error."""
    try:
        row = connection.execute(f"SELECT {_COLUMNS} FROM {_TABLES} WHERE m.id = ?", (number,)).fetchone()
        moment = msgspec.convert({**dict(row), "picture": bool(row["picture"])}, FoundMoment)
        if moment.fields is not None:
            parse_json(moment.fields)
    except (sqlite3.DataError, msgspec.ValidationError, ValueError):
        return None
    return moment


def _tables(search: Search) -> str:
    if search.query.match:
        return f"{_TABLES} JOIN words ON words.rowid = m.id"
    return _TABLES


def _conditions(search: Search) -> tuple[str, list[object]]:
    """Return the conditions of a search, and the values in them."""
    conditions: list[str] = ["1"]
    values: list[object] = []

    def add(condition: str, *parameters: object) -> None:
        conditions.append(condition)
        values.extend(parameters)

    if search.query.match:
        add("words MATCH ?", search.query.match)
    for part in search.query.parts:
        add("instr(m.text, ?)", part)
    if search.since_ms is not None:
        add("m.last_ms >= ? AND m.unix_ms >= ?", search.since_ms, search.since_ms - HELD_MAX_MS)
    if search.until_ms is not None:
        add("m.unix_ms < ?", search.until_ms)
    if search.before is not None:
        add("(m.unix_ms, m.id) < (?, ?)", *search.before)
    for column, choices in (("r.camera", search.cameras), ("m.kind", search.kinds)):
        if choices:
            add(f"{column} IN ({', '.join('?' * len(choices))})", *choices)
    return " AND ".join(conditions), values
