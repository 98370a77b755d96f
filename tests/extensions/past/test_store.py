"""The store: batches that are whole, several writers, and files of other programs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from stream.errors import PastError
from stream.extensions.past import schema
from stream.extensions.past.moments import MATCH, ClipFiles, MomentExtension, RunEnded
from stream.extensions.past.retention import Limits
from stream.extensions.past.schema import APPLICATION_ID, connect_reader, connect_writer, reason_of, unusable
from stream.extensions.past.search import PastReader, Search
from stream.extensions.past.store import PastStore
from tests.support.past import BEGIN_MS, DOOR, YARD, moment, written


def rows(path: str, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_written_moments_are_read(tmp_path: Path) -> None:
    fields = {"kind": MATCH, "question": "is it open?", "watch": "gate", "yes": 0.9, "fields": '{"n":1}'}
    match = moment(2, "gate: is it open?", jpeg=b"jpeg", **fields)
    path = written(tmp_path / "past.sqlite", [moment(1, "a red car"), match, moment(1, "a person", DOOR)])
    with closing(PastReader(path)) as reader:
        newest, *others = reader.find(Search())
        assert reader.picture(newest.id) == b"jpeg"
        assert [reader.picture(item.id) for item in others] == [None, None]
    assert {item.text: item.camera for item in others} == {"a red car": "yard", "a person": "door"}
    assert {name: getattr(newest, name) for name in fields} == fields
    assert (newest.unix_ms, newest.last_ms, newest.times) == (match.unix_ms, match.unix_ms, 1)
    assert (newest.frame_index, newest.pts_s, newest.run, newest.source) == (60, 2.0, YARD.key, YARD.source)


def test_an_answer_that_still_holds_is_extended(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [moment(1)])
    with closing(PastStore(path)) as store:
        store.write([MomentExtension(YARD, 1, BEGIN_MS + 5000, 5.0), MomentExtension(YARD, 1, BEGIN_MS + 3000, 3.0)])
        store.write([MomentExtension(YARD, 7, BEGIN_MS + 5000, 5.0)])  # of a moment that was dropped
    with closing(PastReader(path)) as reader:
        (item,) = reader.find(Search())
    assert (item.last_ms, item.end_s, item.times) == (BEGIN_MS + 5000, 5.0, 3)


def test_the_files_of_a_match_are_kept_with_it(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [moment(1), moment(2, kind=MATCH)])
    with closing(PastStore(path)) as store:
        store.write([ClipFiles(YARD, 2, "gate.jpg", None), ClipFiles(YARD, 2, "gate.jpg", "gate.mp4")])
    with closing(PastReader(path)) as reader:
        match, answer = reader.find(Search())
    assert (match.clip_picture, match.clip_video) == ("gate.jpg", "gate.mp4")
    assert (answer.clip_picture, answer.clip_video) == (None, None)


def test_the_end_of_a_run_is_noted(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [moment(1)])
    with closing(PastStore(path)) as store:
        store.write([RunEnded(YARD, BEGIN_MS + 9, "finished")])
    assert rows(path, "SELECT ended_ms, outcome FROM run") == [(BEGIN_MS + 9, "finished")]


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [])
    with closing(PastStore(path)) as store:
        with pytest.raises(sqlite3.Error):
            store.write([moment(1), moment(2, frame_index=object())])
        store.write([moment(3)])
    assert rows(path, "SELECT number FROM moment") == [(3,)]


def test_a_moment_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [moment(1, jpeg=b"a")])
    with closing(PastStore(path)) as store:
        store.write([moment(2, jpeg=b"b"), moment(1, jpeg=b"c")])
    assert rows(path, "SELECT number, jpeg FROM moment JOIN picture ON moment = moment.id") == [(1, b"a"), (2, b"b")]


@pytest.mark.parametrize(("outcome", "stays"), [(None, False), ("interrupted", False), ("finished", True)])
def test_a_continued_run_takes_the_place_of_the_interrupted_one(
    tmp_path: Path, outcome: str | None, *, stays: bool
) -> None:
    path = written(tmp_path / "past.sqlite", [moment(1, "before"), moment(1, "another camera", DOOR)])
    continuation = replace(YARD, key="again", continues=True)
    with closing(PastStore(path)) as store:
        if outcome is not None:
            store.write([RunEnded(YARD, BEGIN_MS, outcome)])
        store.write([moment(1, "again", continuation)])
        store.write([moment(2, "more", continuation)])
    texts = {text for (text,) in rows(path, "SELECT text FROM moment")}
    assert texts == {"another camera", "again", "more", *(["before"] if stays else [])}
    assert rows(path, "SELECT rowid FROM words WHERE words MATCH 'before'") == ([(1,)] if stays else [])


def test_two_writers_of_one_file_take_turns(tmp_path: Path) -> None:
    path = str(tmp_path / "past.sqlite")
    with closing(PastStore(path)) as first, closing(PastStore(path)) as second:
        for number in range(1, 21):
            first.write([moment(number)])
            second.write([moment(number, run=DOOR)])
    assert rows(path, "SELECT camera, count(*) FROM moment JOIN run ON run.id = run GROUP BY camera") == [
        ("door", 20),
        ("yard", 20),
    ]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_the_file_is_made_by_one_of_two_that_find_it_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = str(tmp_path / "past.sqlite"), schema._is_ours
    calls = []

    def first_says_empty(connection: sqlite3.Connection, name: str) -> bool:
        calls.append(name)
        if len(calls) == 1:
            written(Path(path), [moment(1)])
            return False
        return real(connection, name)

    monkeypatch.setattr(schema, "_is_ours", first_says_empty)
    with closing(PastStore(path)) as store:
        store.write([moment(2)])
    assert rows(path, "SELECT count(*) FROM moment") == [(2,)]


def test_a_file_of_another_program_is_left_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "other.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (name)")
    before = Path(path).read_bytes()
    for connect in (connect_writer, connect_reader):
        with pytest.raises(PastError, match="is the database of another program; name another file"):
            connect(path)
    assert Path(path).read_bytes() == before


def test_a_new_file_is_for_its_user_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [moment(1)])
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_a_newer_version_of_the_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [moment(1)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    for connect in (connect_writer, connect_reader):
        with pytest.raises(PastError, match=r"has version 99 of the tables, and this program knows 2; update"):
            connect(path)
    assert rows(path, "SELECT count(*) FROM moment") == [(1,)]


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("notes " * 1000)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        connect_writer(str(path))
    assert reason_of(caught.value) == "it is no SQLite file"
    with pytest.raises(PastError, match=r"cannot read .*notes.txt': it is no SQLite file; name another file"):
        connect_reader(str(path))
    assert path.read_text() == "notes " * 1000


def test_a_damaged_file_is_reported_in_one_line(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "past.sqlite", [moment(number) for number in range(1, 2000)]))
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    path.write_bytes(data)
    with closing(PastReader(str(path))) as reader, pytest.raises(PastError, match="it is damaged; name another file"):
        reader.find(Search())


def test_no_file_and_an_empty_one_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PastError, match=r"there is no file .*; a run with --remember .* writes it"):
        connect_reader(str(tmp_path / "none.sqlite"))
    (tmp_path / "empty.sqlite").touch()
    with pytest.raises(PastError, match="is empty: no run with --remember has written anything yet"):
        connect_reader(str(tmp_path / "empty.sqlite"))


def test_a_file_without_a_log_is_read_in_a_folder_that_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "past.sqlite", [moment(1)])
    opened, real = [], schema._reader

    def cannot_make_files(address: str, name: str) -> sqlite3.Connection:
        opened.append(address)
        if "immutable" not in address:
            raise sqlite3.OperationalError("unable to open database file")
        return real(address, name)

    monkeypatch.setattr(schema, "_reader", cannot_make_files)
    with closing(connect_reader(path)) as connection:
        assert connection.execute("SELECT count(*) FROM moment").fetchone()[0] == 1
    Path(f"{path}-wal").write_bytes(b"pages")
    with pytest.raises(PastError, match="it cannot be opened"):
        connect_reader(path)


def test_the_file_is_of_this_program_and_gives_space_back(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [])
    assert rows(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert rows(path, "PRAGMA auto_vacuum") == [(2,)]
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]


def test_reasons_are_words_or_the_text_itself() -> None:
    assert reason_of(sqlite3.OperationalError("database or disk is full")) == "the disk is full"
    assert reason_of(sqlite3.OperationalError("no such module: fts5")) == "the SQLite of this Python has no FTS5"
    assert reason_of(sqlite3.OperationalError("something else")) == "something else"
    assert reason_of(sqlite3.OperationalError()) == "OperationalError"
    error = PastError("known")
    assert unusable("a", error) is error


def test_a_clock_far_ahead_deletes_nothing_for_an_hour(tmp_path: Path) -> None:
    path, running_s = str(tmp_path / "past.sqlite"), 0.0
    written(Path(path), [moment(number) for number in range(1, 4)])
    wrong_ms = BEGIN_MS + 40 * 86_400_000
    with closing(PastStore(path, Limits(max_days=30), lambda: running_s)) as store:
        store.write([moment(9, unix_ms=wrong_ms)])
        store.retain(wrong_ms)
        assert len(rows(path, "SELECT id FROM moment")) == 4
        running_s = 3600.0
        store.retain(wrong_ms)
        assert rows(path, "SELECT text FROM moment") == [("moment 9",)]


def test_a_file_that_another_run_makes_meanwhile_is_no_other_program_s(tmp_path: Path) -> None:
    path = str(tmp_path / "past.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        statements: list[str] = []

        def make_it(statement: str) -> None:
            statements.append(statement)
            if "application_id" in statement and len(statements) < 5:
                connection.set_trace_callback(None)
                PastStore(path).close()

        connection.set_trace_callback(make_it)
        assert not schema._is_ours(connection, path), "it was empty at the beginning"
        assert schema._is_ours(connection, path)
