"""The writer: batches in a thread, files that cannot be written, and what is dropped and reported then."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stream.extensions.past import writer as writing
from stream.extensions.past.moments import Moment, MomentExtension
from stream.extensions.past.retention import DAY_MS, Limits
from stream.extensions.past.search import PastReader, Search
from stream.extensions.past.store import PastStore
from stream.extensions.past.writer import PastWriter, SharedWriters
from tests.support.full_disk import room_for
from tests.support.network import until
from tests.support.past import BEGIN_MS, YARD, moment, written

Make = Callable[..., PastWriter]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "past.sqlite")


@pytest.fixture
def make(path: str) -> Iterator[Make]:
    """Makes writers without waits, which are closed at the end."""
    writers: list[PastWriter] = []

    def writer(limits: Limits | None = None, **options: Any) -> PastWriter:
        settings = {"batch_s": 0.0, "retry_s": (0.01, 0.02), "unix_ms": lambda: BEGIN_MS, **options}
        writers.append(PastWriter(path, limits, **settings))
        return writers[-1]

    yield writer
    for past_writer in writers:
        past_writer.close()


def texts(path: str) -> list[str]:
    with closing(PastReader(path)) as reader:
        return [item.text for item in reader.find(Search(limit=1000))][::-1]


def test_records_are_written_in_order(path: str, make: Make) -> None:
    writer = make()
    for number in range(1, 601):
        writer.put(moment(number))
    writer.close()
    writer.close()
    assert writer.records_written == 600
    assert not Path(f"{path}-wal").exists()
    assert texts(path) == [f"moment {number}" for number in range(1, 601)]


def test_a_batch_is_written_while_others_may_still_come(path: str, make: Make) -> None:
    writer = make()
    writer.put(moment(1))
    until(lambda: writer.records_written == 1)
    assert texts(path) == ["moment 1"]


def test_many_records_wait_no_longer_for_others(make: Make) -> None:
    writer = make(batch_s=3600.0)
    for number in range(1, 257):
        writer.put(moment(number))
    until(lambda: writer.records_written == 256)


def test_records_are_prepared_in_the_thread(path: str, make: Make) -> None:
    threads: list[str] = []

    def prepare(record: Moment) -> Moment:
        threads.append(threading.current_thread().name)
        return record

    writer = make(prepare=prepare)
    writer.put(moment(1))
    writer.put(MomentExtension(YARD, 1, BEGIN_MS + 5000, 5.0))
    writer.close()
    assert threads == ["remember"]


def test_limits_are_enforced_after_a_batch_and_when_idle(
    path: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(Path(path), [moment(1)])
    writer = make(Limits(max_days=1), unix_ms=lambda: BEGIN_MS + DAY_MS + 2000)
    writer.put(moment(9))
    until(lambda: writer.records_written == 1)
    writer.close()
    assert texts(path) == ["moment 9"]
    monkeypatch.setattr(writing, "IDLE_S", 0.001)
    make(Limits(max_days=1), unix_ms=lambda: BEGIN_MS + 2 * DAY_MS)
    until(lambda: texts(path) == [])


def refused_by(content: bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(content), None)[1]


def in_no_folder(path: Path) -> None:
    path.parent.rmdir()


def newer(path: Path) -> None:
    written(path, [])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 3")


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (name)")


def damaged(path: Path) -> None:
    written(path, [moment(number) for number in range(2, 500)])
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(len(data) - 4096))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (refused_by(b"not a database " * 100), "cannot be written: it is no SQLite file"),
        (in_no_folder, "cannot be written: it cannot be opened"),
        (newer, "has version 3 of the tables, and this program knows 2"),
        (of_another_program, "is the database of another program; name another file"),
        (damaged, "cannot be written: it is damaged"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_line_and_is_tried_again(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "folder" / "past.sqlite"
    path.parent.mkdir()
    spoil(path)
    before = path.read_bytes() if path.exists() else None
    writer = PastWriter(str(path), batch_s=0.0, retry_s=(0.01, 0.02))
    writer.put(moment(1))
    until(lambda: writer.failures >= 5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert reason in lines[0]
    assert lines[0].endswith("; the run goes on, and the file is tried again")
    assert (path.read_bytes() if path.exists() else None) == before
    if before is None:
        path.parent.mkdir()
    for file in path.parent.iterdir():
        file.unlink()
    until(lambda: writer.records_written == 1)
    writer.close()
    assert capsys.readouterr().err == f"'{path}' takes moments again\nwrote {path}\n"
    assert texts(str(path)) == ["moment 1"]


def test_a_full_disk_loses_nothing_that_was_committed_and_is_written_again(
    path: str, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = make()
    writer.put(moment(1))
    until(lambda: writer.records_written == 1)
    with room_for(256 << 10):
        for number in range(2, 100):
            writer.put(moment(number, jpeg=os.urandom(4000)))
        until(lambda: writer.failures >= 2)
        assert "the run goes on" in capsys.readouterr().err
        assert texts(path)[0] == "moment 1"
    until(lambda: writer.records_written == 99)
    writer.close()
    assert texts(path) == [f"moment {number}" for number in range(1, 100)]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_file_that_is_removed_is_made_again(path: str, make: Make) -> None:
    writer = make()
    writer.put(moment(1))
    until(lambda: writer.records_written == 1)
    for name in os.listdir(os.path.dirname(path)):
        os.unlink(os.path.join(os.path.dirname(path), name))
    writer.put(moment(2))
    writer.close()
    assert texts(path) == ["moment 2"]


def test_another_writer_that_is_slow_is_waited_for_without_a_word(
    path: str, make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stream.extensions.past.schema.BUSY_MS", 1)
    with closing(PastStore(path)) as store:
        store._connection.execute("BEGIN IMMEDIATE")
        writer = make(retry_s=(2.0, 2.0))  # time to see the first failure
        writer.put(moment(1))
        until(lambda: writer.failures >= 1)
        assert capsys.readouterr().err == ""
        store._connection.execute("ROLLBACK")
        until(lambda: writer.records_written == 1)
    until(lambda: writer.failures == 0)


def test_waiting_records_are_limited_and_those_dropped_are_counted(
    path: str, make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(writing, "WAITING_RECORDS", 10)
    monkeypatch.setattr(writing, "WAITING_BYTES", 350)
    Path(path).write_bytes(b"not a database " * 100)
    writer = make(retry_s=(3600.0, 3600.0))
    writer.put(moment(0))
    until(lambda: writer.failures == 1)
    writer.put(MomentExtension(YARD, 0, BEGIN_MS, 1.0))
    for number in range(1, 21):
        writer.put(moment(number, jpeg=bytes(100)))
    moments = [record for record in writer.outbox._others if isinstance(record, Moment)]
    assert [(item.number, item.jpeg is not None) for item in moments] == [
        (number, number > 17) for number in range(11, 21)
    ]
    writer.close()
    assert f"note: 21 moments could not be written to '{path}'" in capsys.readouterr().err


def test_a_file_that_could_not_be_written_is_tried_once_more_at_the_end(path: str, make: Make) -> None:
    Path(path).write_bytes(b"not a database " * 100)
    writer = make(retry_s=(3600.0, 3600.0))
    for number in range(1, 601):
        writer.put(moment(number))
    until(lambda: writer.failures == 1)
    Path(path).unlink()
    writer.close()
    assert writer.records_written == len(texts(path)) == 600


def test_an_unexpected_error_ends_the_writer_and_not_the_run(
    path: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Moment) -> Moment:
        raise ValueError("unexpected")

    writer = make(prepare=fail)
    writer.put(moment(1))
    writer._thread.join()
    writer.put(moment(2))
    writer.close()
    assert "takes no more moments; the run goes on" in caplog.text


def test_a_disk_that_hangs_is_waited_for_in_vain_for_a_limited_time(
    path: str, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    def hang(record: Moment) -> Moment:
        released.wait()
        return record

    monkeypatch.setattr(writing, "CLOSE_LIMIT_S", 0.01)
    writer = make(prepare=hang)
    writer.put(moment(1))
    writer.close()
    assert "the last moments could not be written" in caplog.text
    released.set()
    writer._thread.join()


def test_runs_of_one_process_share_a_writer(path: str, make: Make) -> None:
    writers = SharedWriters()
    first = writers.acquire(path, make)
    link = f"{path}-link"
    os.symlink(path, link)
    assert writers.acquire(link, make) is first
    writers.release(path)
    first.put(moment(1))
    writers.release(link)
    assert texts(path) == ["moment 1"], "closed with its last run"
    second = writers.acquire(path, make)
    assert second is not first
    writers.release(path)
