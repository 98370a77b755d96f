"""Files from elsewhere: a schema that no run makes, rows that no run writes, and what they may cost."""

from __future__ import annotations

import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from stream.errors import PastError
from stream.extensions.past import search
from stream.extensions.past.recap import read_moments
from stream.extensions.past.retention import Limits
from stream.extensions.past.schema import ROW_BYTES_MAX, connect_reader, connect_writer
from stream.extensions.past.search import PastReader, Query, Search
from stream.extensions.past.store import PastStore
from tests.support.past import BEGIN_MS, DOOR, moment, written

DAY_MS = 86_400_000

SCHEMA_CHANGES = {
    "a view in the place of a table": """
        DROP TRIGGER moment_added; DROP TRIGGER moment_removed; ALTER TABLE moment RENAME TO old;
        CREATE VIEW moment AS SELECT id, run, number, kind, unix_ms, last_ms, frame_index, pts_s, start_s, end_s,
        printf('%.100000000c', 'x') AS text, question, watch, yes, fields, times, clip_picture, clip_video FROM old;""",
    "another trigger": "CREATE TRIGGER more AFTER INSERT ON run BEGIN DELETE FROM moment; END;",
    "another text of a trigger": """
        DROP TRIGGER picture_added; CREATE TRIGGER picture_added AFTER INSERT ON picture BEGIN SELECT 1; END;""",
    "a computed column": "ALTER TABLE run ADD COLUMN more AS (printf('%.100000000c', 'x'));",
    "an index of an expression": "CREATE INDEX more ON moment (hex(text));",
    "another table": "CREATE TABLE more (name);",
    "a table less": "DROP TABLE total;",
}

BAD_VALUES = (
    *("unix_ms = 'x'", "unix_ms = 9e300", "unix_ms = -1", "unix_ms = 9223372036854775807", "last_ms = x'00'"),
    *("kind = 'other'", "kind = x'ff'", "text = x'ff00'", "text = printf('%.65537c', 'x')", "question = x'01'"),
    *("watch = x''", "yes = 'x'", "yes = 9e999", "yes = 1.5", "fields = '{'", "fields = x'00'"),
    *("fields = printf('%.100000c', '[')", "fields = printf('%.65c', '[') || printf('%.65c', ']')"),
    *("times = 'a'", "times = -5", "pts_s = 'abc'", "pts_s = 9e999", "end_s = 9e999", "clip_picture = x'00'"),
    *("frame_index = 'q'", "frame_index = 9223372036854775807", "frame_index = -1"),
)  # fmt: skip


def changed(path: Path, script: str) -> str:
    """Return the path of a file with three moments that another program has changed."""
    moments = [moment(number, f"moment {number} 门", jpeg=b"jpeg") for number in (1, 2, 3)]
    written(path, moments)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return str(path)


@pytest.mark.parametrize("change", SCHEMA_CHANGES.values(), ids=SCHEMA_CHANGES)
def test_a_schema_that_no_run_makes_is_refused(tmp_path: Path, change: str) -> None:
    path = changed(tmp_path / "past.sqlite", change)
    before = Path(path).read_bytes()
    for connect in (connect_reader, connect_writer):
        with pytest.raises(PastError, match="has other tables or triggers than those that a run makes; name another"):
            connect(path)
    assert Path(path).read_bytes() == before


def test_the_schema_of_a_vacuumed_and_analysed_copy_is_ours(tmp_path: Path) -> None:
    path = changed(tmp_path / "past.sqlite", f"VACUUM INTO '{tmp_path / 'copy.sqlite'}'; VACUUM; ANALYZE;")
    for name in (path, str(tmp_path / "copy.sqlite")):
        with closing(PastReader(name)) as reader:
            assert len(reader.find(Search(query=Query.of("moment")))) == 3
        with closing(PastStore(name)) as store:
            store.write([moment(4)])


@pytest.mark.parametrize("change", BAD_VALUES)
def test_a_row_that_no_run_writes_is_left_out_and_counted(tmp_path: Path, change: str) -> None:
    path = changed(tmp_path / "past.sqlite", f"UPDATE moment SET {change} WHERE number = 2")
    with closing(PastReader(path)) as reader:
        assert reader.notice is None
        for _ in range(2):
            assert {item.frame_index for item in reader.find(Search())} == {30, 90}
        assert reader.notice == f"note: 1 row of {path!r}, which no run has written, left out"
        times = reader.span(Search())
        assert times is not None
        reader.count(Search(since_ms=max(0, times[0]), until_ms=times[1] + 1), 24)
    with closing(PastStore(path, Limits(max_days=1, max_mib=0.001))) as store:
        store.write([moment(4)])
        store.retain(BEGIN_MS + DAY_MS // 2)


@pytest.mark.parametrize("change", ["camera = x'00'", "key = x'00'", "camera = printf('%.65537c', 'x')"])
def test_the_moments_of_a_run_that_no_run_writes_are_left_out(tmp_path: Path, change: str) -> None:
    path = tmp_path / "past.sqlite"
    written(path, [moment(1), moment(2), moment(1, "a door", DOOR)])
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"UPDATE run SET {change} WHERE camera = 'yard'")
    with closing(PastReader(str(path))) as reader:
        assert [item.text for item in reader.find(Search())] == ["a door"]
        assert reader.notice is not None
        assert reader.notice.startswith("note: 2 rows of")
        assert "door" in reader.cameras()


def test_bytes_that_are_no_utf8_are_shown_as_such(tmp_path: Path) -> None:
    path = changed(tmp_path / "past.sqlite", "UPDATE moment SET text = CAST(x'61ff' AS TEXT) WHERE number = 2")
    with closing(PastReader(path)) as reader:
        assert [item.text for item in reader.find(Search(limit=2))][1] == "a\ufffd"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the length of a row has no limit before Python 3.11")
def test_a_row_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    change = f"UPDATE moment SET text = printf('%.{ROW_BYTES_MAX + 1}c', 'x') WHERE number = 2"
    path = changed(tmp_path / "past.sqlite", f"{change}; UPDATE picture SET jpeg = zeroblob(2000000) WHERE moment = 3")
    with closing(PastReader(path)) as reader:
        assert [item.id for item in reader.find(Search())] == [3, 1]
        for query in (lambda: reader.picture(3), lambda: reader.find(Search(query=Query.of("门")))):
            with pytest.raises(PastError, match="a row of it is larger than any that a run writes; name another file"):
                query()
    with closing(PastStore(path)) as store:
        store.write([moment(4)])


@pytest.mark.parametrize("value", ["1000000000000", "'text'"])
def test_a_picture_of_another_type_is_none(tmp_path: Path, value: str) -> None:
    path = changed(tmp_path / "past.sqlite", f"UPDATE picture SET jpeg = {value}")
    with closing(PastReader(path)) as reader:
        assert reader.picture(1) is None


@pytest.mark.parametrize(
    "change", ["DELETE FROM total", "UPDATE total SET picture_bytes = 'x'", "INSERT INTO total VALUES (1)"]
)
def test_a_wrong_total_ends_no_writer(tmp_path: Path, change: str) -> None:
    path = changed(tmp_path / "past.sqlite", change)
    with closing(PastStore(path, Limits(max_mib=0.001))) as store:
        store.write([moment(4)])
        store.retain(BEGIN_MS)


def test_too_many_bad_rows_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BAD_MAX", 2)
    path = changed(tmp_path / "past.sqlite", "UPDATE moment SET times = -1")
    with closing(PastReader(path)) as reader, pytest.raises(PastError, match="too many rows that no run has written"):
        reader.find(Search())


def test_opening_a_file_ends_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = changed(tmp_path / "past.sqlite", "".join(f"CREATE TABLE more{number} (name);" for number in range(900)))
    seconds = iter(range(0, 10**9, 100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr("stream.extensions.past.schema.STEPS_A_CHECK", 10)
    with pytest.raises(PastError, match="it takes too long; name another file"):
        connect_reader(path)


def test_a_recap_keeps_no_long_texts(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [moment(1, "x" * 60_000, question="y" * 4000)])
    with closing(PastReader(path)) as reader:
        (item,), _ = read_moments(reader, Search())
    assert len(item.text) + len(item.question) <= 400
