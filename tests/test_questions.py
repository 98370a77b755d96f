"""Lines that are piped in are asked, or refused with a reason."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator

import pytest

from stream.config import QUERY_LIMIT_CHARS
from stream.display.input import QuestionReader, refusal
from tests.waiting import LIMIT_S


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
