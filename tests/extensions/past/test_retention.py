"""Retention by age and size: bounded portions, pictures first, and space that is given back."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stream.extensions.past.retention import DAY_MS, MIB, PORTION, Limits, retain, used_bytes
from stream.extensions.past.schema import connect_writer
from stream.extensions.past.store import PastStore
from tests.support.past import BEGIN_MS, moment


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "past.sqlite")


@pytest.fixture
def connection(path: str) -> Iterator[sqlite3.Connection]:
    with closing(connect_writer(path)) as connection:
        yield connection


def fill(path: str, first: int, last: int, picture_bytes: int = 0) -> None:
    """Write moments, each with a picture unless it has no bytes."""
    with closing(PastStore(path)) as store:
        jpegs = (os.urandom(picture_bytes) if picture_bytes else None for _ in range(last + 1 - first))
        store.write([moment(number, jpeg=jpeg) for number, jpeg in zip(range(first, last + 1), jpegs, strict=True)])


def value(connection: sqlite3.Connection, query: str) -> int:
    ((number,),) = connection.execute(query)
    return int(number)


def test_old_moments_go_in_portions_with_their_words_and_pictures(path: str, connection: sqlite3.Connection) -> None:
    fill(path, 1, 3 * PORTION, picture_bytes=10)
    now_ms = BEGIN_MS + 2 * DAY_MS + 1000 * 2 * PORTION
    limits = Limits(max_days=2)
    retain(connection, limits, now_ms)
    assert value(connection, "SELECT min(number) FROM moment") == PORTION + 1
    for _ in range(5):
        retain(connection, limits, now_ms)
    left = PORTION + 1
    assert value(connection, "SELECT min(number) FROM moment") == 2 * PORTION
    assert value(connection, "SELECT count(*) FROM picture") == left
    assert value(connection, "SELECT picture_bytes FROM total") == 10 * left
    assert value(connection, "SELECT count(*) FROM words WHERE words MATCH 'moment'") == left
    connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")


def test_a_large_batch_has_a_larger_portion(path: str, connection: sqlite3.Connection) -> None:
    fill(path, 1, 500)
    retain(connection, Limits(max_days=1), BEGIN_MS + 2 * DAY_MS, records_written=200)
    assert value(connection, "SELECT count(*) FROM moment") == 100


def test_runs_without_moments_go_a_day_after_they_began(path: str, connection: sqlite3.Connection) -> None:
    fill(path, 1, 1)
    retain(connection, Limits(max_days=0.5), BEGIN_MS + DAY_MS)
    assert value(connection, "SELECT count(*) FROM moment") == 0
    assert value(connection, "SELECT count(*) FROM run") == 1, "it may go on"
    fill(path, 2, 2)
    retain(connection, Limits(max_days=1), BEGIN_MS + 3 * DAY_MS)
    assert value(connection, "SELECT count(*) FROM run") == 0


def test_pictures_go_before_text(path: str, connection: sqlite3.Connection) -> None:
    fill(path, 1, 200, picture_bytes=10_000)
    limits = Limits(max_mib=1)
    while used_bytes(connection) > MIB:
        retain(connection, limits, BEGIN_MS)
    assert value(connection, "SELECT count(*) FROM moment") == 200
    assert 0 < value(connection, "SELECT count(*) FROM picture") < 110
    newest = value(connection, "SELECT max(id) FROM moment")
    assert value(connection, "SELECT max(moment) FROM picture") == newest


def test_text_goes_if_pictures_are_few(path: str, connection: sqlite3.Connection) -> None:
    with closing(PastStore(path)) as store:
        store.write([moment(number, f"{number} " + "words of a long answer " * 100) for number in range(1, 1001)])
    while used_bytes(connection) > MIB:
        retain(connection, Limits(max_mib=1), BEGIN_MS)
    assert 0 < value(connection, "SELECT min(number) FROM moment") < value(connection, "SELECT max(number) FROM moment")
    assert value(connection, "SELECT max(number) FROM moment") == 1000


def test_the_file_stays_small_while_it_is_written(path: str) -> None:
    with closing(PastStore(path, Limits(max_mib=2))) as store:
        for batch in range(200):
            store.write([moment(20 * batch + at, jpeg=os.urandom(4000) if at % 2 else None) for at in range(20)])
            store.retain(BEGIN_MS, 20)
    assert os.path.getsize(path) < 3 * MIB


def test_space_is_given_back_bit_by_bit(path: str, connection: sqlite3.Connection) -> None:
    fill(path, 1, 100, picture_bytes=100_000)
    connection.execute("DELETE FROM moment")
    before = value(connection, "PRAGMA page_count")
    retain(connection, Limits(), BEGIN_MS)
    after = value(connection, "PRAGMA page_count")
    assert 0 < before - after <= 256
    while value(connection, "PRAGMA freelist_count") > 64:
        retain(connection, Limits(), BEGIN_MS)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert os.path.getsize(path) < MIB


def test_without_limits_all_stays(path: str, connection: sqlite3.Connection) -> None:
    fill(path, 1, 3)
    retain(connection, Limits(), BEGIN_MS + 10_000 * DAY_MS)
    assert value(connection, "SELECT count(*) FROM moment") == 3


def test_a_failure_while_deleting_changes_nothing(path: str, connection: sqlite3.Connection) -> None:
    fill(path, 1, 3)
    connection.execute("DROP TABLE words")
    with pytest.raises(sqlite3.Error):
        retain(connection, Limits(max_days=1), BEGIN_MS + 5 * DAY_MS)
    assert not connection.in_transaction
    assert value(connection, "SELECT count(*) FROM moment") == 3
