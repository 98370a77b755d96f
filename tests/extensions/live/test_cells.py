"""Text fits the cells that it is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from stream.extensions.live.cells import cut_path, wrap
from stream.untrusted import printable


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
def test_lines_break_between_words_if_possible(text: str, width: int, lines: list[str]) -> None:
    assert wrap(text, width) == lines


@given(st.text(), st.integers(2, 40))
def test_no_line_is_wider_than_allowed_and_no_word_is_lost(text: str, width: int) -> None:
    line = printable(text)
    lines = wrap(line, width)
    assert all(cell_len(part) <= width for part in lines)
    assert "".join(lines).replace(" ", "") == line.replace(" ", "")


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
def test_a_path_fits(text: str, width: int) -> None:
    for path in (cut_path(text, width), cut_path(f"rtsp://{text}", width)):
        assert cell_len(path) <= width
