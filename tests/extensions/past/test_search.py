"""Search: the words of a user are words whatever they contain, and each query is bounded."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.errors import PastError
from stream.extensions.past.moments import HELD_MAX_MS, MATCH, MomentExtension
from stream.extensions.past.search import FOUND_MAX, PastReader, Query, Search
from stream.extensions.past.store import PastStore
from tests.support.past import BEGIN_MS, DOOR, YARD, moment, written

TEXTS = (
    "A red car stops at the gate.",
    "Two cars, both red.",
    "A car; the door is red.",
    "No person is there. OR is there? NEAR the gate -- DROP TABLE moment; 100%",
    "Müller's café is closed",
    "一辆红色的汽车停在门口",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("past")
    return written(folder / "past.sqlite", [moment(number, text) for number, text in enumerate(TEXTS, 1)])


@pytest.fixture
def reader(path: str) -> Iterator[PastReader]:
    with closing(PastReader(path)) as reader:
        yield reader


def found(reader: PastReader, words: str, **options: object) -> list[str]:
    return [item.text for item in reader.find(replace(Search(query=Query.of(words)), **options))][::-1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("red car", (0, 1, 2)),
        ("RED Cars", (0, 1, 2)),
        ('"red car"', (0,)),
        ('"red car', (0,)),
        ('gate "red car" stop', (0,)),
        ("stop*", (0,)),
        ("ga*", (0, 3)),
        ("truck", ()),
        ("OR", (3,)),
        ("NEAR(red car)", ()),
        ("red OR truck", ()),
        ("NOT car", ()),
        ("text:car", ()),
        ("red AND car", ()),
        ("DROP TABLE moment;", (3,)),
        ("' OR 1=1 --", ()),
        ("-- gate", (0, 3)),
        ("100%", (3,)),
        ("muller cafe", (4,)),
        ("Müller's", (4,)),
        ("红色", (5,)),
        ("红色 门口", (5,)),
        ("红色 car", ()),
        ("红%", ()),
        ("gate\x00", (0, 3)),
        ("  ", (0, 1, 2, 3, 4, 5)),
        ("", (0, 1, 2, 3, 4, 5)),
    ],
)
def test_words_are_words(reader: PastReader, words: str, numbers: tuple[int, ...]) -> None:
    assert found(reader, words) == [TEXTS[number] for number in numbers]


@given(st.text(max_size=60))
def test_no_text_is_syntax(path: str, words: str) -> None:
    try:
        query = Query.of(words)
    except PastError:
        return  # there is no word in it
    with closing(PastReader(path)) as reader:
        reader.find(Search(query=query))


@pytest.mark.parametrize("words", ["!!!", '"', "* ?", "\x00"])
def test_a_search_without_a_word_is_refused(words: str) -> None:
    with pytest.raises(PastError, match="there is no word in"):
        Query.of(words)


def test_long_searches_are_refused() -> None:
    with pytest.raises(PastError, match="at most 1000 characters, not 1001"):
        Query.of("a" * 1001)
    with pytest.raises(PastError, match="at most 32 words"):
        Query.of("a " * 33)


def test_times_cameras_and_kinds_narrow_a_search(tmp_path: Path) -> None:
    path = written(
        tmp_path / "past.sqlite",
        [moment(1, "one"), moment(2, "two", kind=MATCH), moment(3, "three"), moment(2, "other", DOOR)],
    )
    with closing(PastReader(path)) as reader:
        assert reader.cameras() == ["door", "yard"]
        assert found(reader, "", since_ms=BEGIN_MS + 2000, until_ms=BEGIN_MS + 3000) == ["two", "other"]
        assert found(reader, "", cameras=("yard",)) == ["one", "two", "three"]
        assert found(reader, "", cameras=("' OR 1=1 --",)) == []
        assert found(reader, "", kinds=(MATCH,)) == ["two"]
        assert found(reader, "", limit=2) == ["other", "three"]
        last = reader.find(Search(limit=2))[-1]
        assert found(reader, "", before=(last.unix_ms, last.id)) == ["one", "two"]
        assert found(reader, "", limit=10**9) == ["one", "two", "other", "three"]
        assert reader.span(Search(cameras=("yard",))) == (BEGIN_MS + 1000, BEGIN_MS + 3000, 3)
        assert reader.span(Search(cameras=("none",))) is None


def test_a_search_returns_a_limited_number(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [moment(number) for number in range(FOUND_MAX + 5)])
    with closing(PastReader(path)) as reader:
        assert len(reader.find(Search(limit=10**9))) == FOUND_MAX


def test_a_moment_that_still_held_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [moment(0, "held")])
    with closing(PastStore(path)) as store:
        store.write([MomentExtension(YARD, 0, BEGIN_MS + HELD_MAX_MS, 600.0)])
    late = Search(since_ms=BEGIN_MS + HELD_MAX_MS, until_ms=BEGIN_MS + 2 * HELD_MAX_MS)
    with closing(PastReader(path)) as reader:
        assert [item.text for item in reader.find(late)] == ["held"]
        assert reader.count(late, 4) == [1, 0, 0, 0]
        assert reader.find(replace(late, since_ms=BEGIN_MS + HELD_MAX_MS + 1)) == []


def test_moments_are_counted_by_spans_of_time(reader: PastReader) -> None:
    search = Search(since_ms=BEGIN_MS + 1000, until_ms=BEGIN_MS + 7000)
    assert reader.count(search, 3) == [2, 2, 2]
    assert reader.count(replace(search, query=Query.of("gate")), 3) == [1, 1, 0]
    assert reader.count(replace(search, until_ms=BEGIN_MS + 1001), 2) == [1, 0]


def test_a_query_ends_after_its_time(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [moment(number) for number in range(5000)])
    with closing(PastReader(path, limit_s=-1.0)) as reader, pytest.raises(PastError, match="search less time"):
        reader.count(Search(query=Query.of("moment"), since_ms=0, until_ms=2 * BEGIN_MS), 24)


def test_a_reader_cannot_write(reader: PastReader) -> None:
    with reader._query() as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM run")


def test_a_reader_sees_what_is_written_meanwhile_and_serves_threads(tmp_path: Path) -> None:
    path = written(tmp_path / "past.sqlite", [moment(1)])
    with closing(PastReader(path)) as reader, closing(PastStore(path)) as store:
        store.write([moment(2)])
        results: list[int] = []
        threads = [threading.Thread(target=lambda: results.append(len(reader.find(Search())))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [2, 2, 2, 2]
