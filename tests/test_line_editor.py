"""What a terminal sends becomes the line that was meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.display.input import KEPT_CHARS, Key, LineEditor


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
