"""Lines of bounded length, however they arrive."""

from __future__ import annotations

import os

import pytest

from stream.extensions.mcp.standard_input import BoundedLines, bounded_stdin


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize(
    ("data", "bounded"),
    [
        (b"abc\nde\n", b"abc\nde\n"),
        (b"abcdef\nx\n", b"abcd\nx\n"),
        (b"a" * 30 + b"\n" + b"b" * 30 + b"\nok\n", b"aaaa\nbbbb\nok\n"),
        (b"abcd", b"abcd"),
        (b"\n\n\n", b"\n\n\n"),
        (b"abcd\r\nxy", b"abcd\r\nxy"),
    ],
)
def test_long_lines_lose_their_end(data: bytes, bounded: bytes, step: int) -> None:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    lines, received, part = BoundedLines(reading, 4), b"", bytearray(step)
    while count := lines.readinto(part):
        received += bytes(part[:count])
    os.close(reading)
    assert received.replace(b"\r", b"") == bounded.replace(b"\r", b"")


def test_bytes_that_are_no_text_are_replaced() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"\xff\n")
    os.close(writing)
    with bounded_stdin(reading) as stream:
        assert stream.readlines() == ["\ufffd\n"]
    os.close(reading)
