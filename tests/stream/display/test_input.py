"""What a terminal sends becomes the line that was meant."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.config import QUERY_LIMIT_CHARS
from stream.display.input import KEPT_CHARS, Key, LineEditor, QuestionReader, refusal
from tests.support.network import LIMIT_S


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (b"abc", "abc"),
        (b"abd\x7fc", "abc"),
        (b"\x08abc", "abc"),
        (b"what is\x15abc", "abc"),
        (b"two words\x17", "two "),
        (b"one\x17", ""),
        (b"a\tb", "a b"),
        (b"a\x1b[Db\x1b[3~c\x1bOAd\x1bxe", "abcde"),
        (b"a\x04\x01b", "ab"),
        ("grüße 你好".encode(), "grüße 你好"),
        (b"a\xff", "a\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_keys_edit_the_line(typed: bytes, text: str) -> None:
    editor = LineEditor()
    assert list(editor.feed(typed)) == []
    assert editor.text == text


def test_characters_and_escapes_may_come_in_pieces() -> None:
    editor = LineEditor()
    for byte in "é你".encode():
        assert list(editor.feed(bytes([byte]))) == []
    for piece in (b"\x1b[", b"1;5C", b"x"):
        assert list(editor.feed(piece)) == []
    assert editor.text == "é你x"


def test_the_escape_key_alone_takes_nothing_with_it() -> None:
    editor = LineEditor()
    assert list(editor.feed(b"\x1b")) == []
    assert list(editor.feed(b"x")) == []
    assert editor.text == "x"


def test_enter_gives_the_line_and_begins_another() -> None:
    editor = LineEditor()
    assert list(editor.feed(b"one\ntwo\r\nthr")) == ["one", "two", ""]
    assert editor.text == "thr"


def test_some_keys_are_for_others() -> None:
    assert list(LineEditor().feed(b"a\x1ab\x0c\n")) == [Key.SUSPEND, Key.REDRAW, "ab"]


def test_a_line_is_bounded() -> None:
    editor = LineEditor()
    assert list(editor.feed(b"x" * (3 * KEPT_CHARS))) == []
    assert len(editor.text) == KEPT_CHARS


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_any_bytes_leave_a_printable_line(pieces: list[bytes]) -> None:
    editor = LineEditor()
    for piece in pieces:
        for line in editor.feed(piece):
            assert isinstance(line, Key) or line.isprintable()
    assert editor.text.isprintable()
    assert len(editor._rest) < 100


class Piped:
    """A reader at the end of a pipe, and what it did."""

    def __init__(self) -> None:
        self.asked: queue.Queue[str] = queue.Queue()
        self.told: queue.Queue[str] = queue.Queue()
        self.source, self.sink = os.pipe()
        self.reader = QuestionReader(self.source, self.asked.put, self.told.put)

    def end(self) -> None:
        os.close(self.sink)
        self.sink = -1


@pytest.fixture
def piped() -> Iterator[Piped]:
    made = Piped()
    yield made
    made.reader.close()
    made.reader.close()
    os.close(made.source)
    if made.sink >= 0:
        made.end()


def test_each_line_is_asked(piped: Piped) -> None:
    os.write(piped.sink, b"who?\n what now? \nand the")
    assert [piped.asked.get(timeout=LIMIT_S) for _ in range(2)] == ["who?", "what now?"]
    piped.end()
    assert piped.asked.get(timeout=LIMIT_S) == "and the"
    piped.reader._thread.join(LIMIT_S)
    assert not piped.reader._thread.is_alive()


def test_lines_that_are_no_question_are_refused(piped: Piped) -> None:
    os.write(piped.sink, b"  \n" + b"x" * (QUERY_LIMIT_CHARS + 1) + b"\nwho?\n")
    assert piped.asked.get(timeout=LIMIT_S) == "who?"
    assert [piped.told.get(timeout=LIMIT_S) for _ in range(2)] == [
        "not asked: an empty line is no question",
        "not asked: a question has at most 4000 characters, this one has 4001",
    ]
    assert piped.asked.empty()


def test_a_descriptor_that_cannot_be_read_ends_it() -> None:
    source, sink = os.pipe()
    reader = QuestionReader(sink, print, print)
    os.close(source)
    reader._thread.join(LIMIT_S)
    assert not reader._thread.is_alive()
    reader.close()
    os.close(sink)


def test_the_longest_question_is_one() -> None:
    assert refusal("x" * QUERY_LIMIT_CHARS) is None
