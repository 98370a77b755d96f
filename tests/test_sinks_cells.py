"""Text fits the cells that it is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from stream.display.text import cut, cut_line, cut_path, cut_start, tail, wrap
from stream.printable import printable


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("", 5, [""]),
        ("one two", 7, ["one two"]),
        ("one two", 6, ["one", "two"]),
        ("onetwothree", 4, ["onet", "woth", "ree"]),
        ("a onetwo", 4, ["a", "onet", "wo"]),
        ("你好 世界", 4, ["你好", "世界"]),
        ("你好世界", 5, ["你好", "世界"]),
    ],
)
def test_lines_break_between_words_where_they_can(text: str, width: int, lines: list[str]) -> None:
    assert wrap(text, width) == lines


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("你好", 3, "你…"), ("ab", 0, ""), ("ab", 1, "…")],
)
def test_what_is_cut_says_so(text: str, width: int, short: str) -> None:
    assert cut(text, width) == short


def test_the_tail_is_what_was_typed_last() -> None:
    assert [tail("abc", width) for width in (5, 3, 2, 0)] == ["abc", "abc", "bc", ""]
    assert tail("a你好", 3) == "好"


def test_a_styled_line_is_cut_across_its_pieces() -> None:
    line = [("abc", "x"), ("def", "y"), ("g", "z")]
    assert cut_line(line, 7) == line
    assert cut_line(line, 5) == [("abc", "x"), ("d…", "y")]
    assert cut_line(line, 3) == [("abc", "x")]


def test_nothing_that_a_terminal_would_obey_gets_through() -> None:
    assert printable("a\x1b[31mb\nc\u202ed\x07") == "ab cd"


@given(st.text(), st.integers(2, 40))
def test_no_line_is_wider_than_allowed_and_no_word_is_lost(text: str, width: int) -> None:
    line = printable(text)
    lines = wrap(line, width)
    assert all(cell_len(part) <= width for part in lines)
    assert "".join(lines).replace(" ", "") == line.replace(" ", "")
    assert cell_len(cut(line, width)) <= width
    assert cell_len(tail(line, width)) <= width


@pytest.mark.parametrize(
    ("path", "width", "text"),
    [
        ("a.mp4", 9, "a.mp4"),
        ("/films/holiday/a.mp4", 16, "…/holiday/a.mp4"),
        ("/films/holiday/a.mp4", 12, "…/a.mp4"),
        ("/films/holiday/a.mp4", 5, "….mp4"),
        ("/films/holiday/", 10, "…/holiday/"),
        ("/films/你好/a.mp4", 12, "…/你好/a.mp4"),
        ("rtsp://camera.local/stream", 20, "rtsp://cam…al/stream"),
        ("a.mp4", 1, "…"),
        ("a.mp4", 0, ""),
    ],
)
def test_the_end_of_a_path_stays(path: str, width: int, text: str) -> None:
    assert cut_path(path, width) == text


@given(st.text(), st.integers(0, 40))
def test_a_path_and_an_end_fit(text: str, width: int) -> None:
    for one in (cut_path(text, width), cut_start(text, width), cut_path(f"rtsp://{text}", width)):
        assert cell_len(one) <= width
