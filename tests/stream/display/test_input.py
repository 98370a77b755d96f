"""Lines that are typed or piped in are asked, or refused with a reason."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream import logs
from stream.commands import watch
from stream.display.input import KEPT_CHARS, AskingDisplay, PendingQuestions, QuestionReader, refusal_reason
from stream.events import Event, QueryChanged
from stream.sinks.base import Display
from stream.untrusted import QUERY_LIMIT_CHARS
from tests.support.events import summary
from tests.support.network import LIMIT_S, until


class Piped:
    """A reader at the end of a pipe, and what it did."""

    def __init__(self) -> None:
        self.asked: queue.Queue[str] = queue.Queue()
        self.shown: queue.Queue[str] = queue.Queue()
        self.source, self.sink = os.pipe()
        self.reader = QuestionReader(self.source, PendingQuestions(self.asked.put), self.shown.put)

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
    os.write(piped.sink, "who?\r\n what\x1b[D\tnow 你? \nand the".encode())
    assert [piped.asked.get(timeout=LIMIT_S) for _ in range(2)] == ["who?", "what now 你?"]
    piped.end()
    assert piped.asked.get(timeout=LIMIT_S) == "and the"
    piped.reader._thread.join(LIMIT_S)
    assert not piped.reader._thread.is_alive()


def test_lines_that_are_no_question_are_refused(piped: Piped) -> None:
    os.write(piped.sink, b"  \n" + b"x" * (QUERY_LIMIT_CHARS + 1) + b"\nwho?\n")
    assert piped.asked.get(timeout=LIMIT_S) == "who?"
    assert [piped.shown.get(timeout=LIMIT_S) for _ in range(2)] == [
        "not asked: the question is empty",
        "not asked: a question has at most 4000 characters, this one has 4001",
    ]
    assert piped.asked.empty()


def test_a_descriptor_that_cannot_be_read_ends_it() -> None:
    source, sink = os.pipe()
    reader = QuestionReader(sink, PendingQuestions(print), print)
    os.close(source)
    reader._thread.join(LIMIT_S)
    assert not reader._thread.is_alive()
    reader.close()
    os.close(sink)


def test_the_longest_question_is_one() -> None:
    assert refusal_reason("x" * QUERY_LIMIT_CHARS) is None


def test_characters_may_come_in_pieces(piped: Piped) -> None:
    for byte in "é你\n".encode():
        os.write(piped.sink, bytes([byte]))
    assert piped.asked.get(timeout=LIMIT_S) == "é你"


def test_a_line_without_an_end_is_bounded(piped: Piped) -> None:
    for _ in range(2 * KEPT_CHARS // 4096):
        os.write(piped.sink, b"x" * 4096)
    piped.end()
    assert "this one has" in piped.shown.get(timeout=LIMIT_S)
    assert len(piped.reader._line) <= KEPT_CHARS


@given(st.text(max_size=40))
def test_a_question_is_printable_and_one_line(line: str) -> None:
    asked: list[str] = []
    PendingQuestions(asked.append).put(line, lambda reason: None)
    assert all(question.isprintable() or not question.isascii() for question in asked)
    assert not any("\n" in question or "\x1b" in question for question in asked)


def test_a_question_waits_until_it_is_taken() -> None:
    questions = PendingQuestions(lambda question: None)
    assert questions.newest == ""
    questions.put("who?", print)
    assert questions.newest == "who?"
    assert questions.settle(QueryChanged(query="another one")) == []
    assert questions.newest == "who?"
    assert questions.settle(QueryChanged(query="who?", error="too long")) == []
    assert questions.newest == ""


def test_questions_that_a_later_one_replaced_are_named() -> None:
    questions = PendingQuestions(lambda question: None)
    for line in ("who?", "where?", "who?", "why?", "when?"):
        questions.put(line, print)
    assert questions.settle(QueryChanged(query="why?")) == [
        f"not asked, because another question followed: {line}" for line in ("who?", "where?", "who?")
    ]
    assert questions.newest == "when?"


class Shown(Display):
    def __init__(self) -> None:
        self.seen: list[object] = []

    def write(self, event: Event) -> None:
        self.seen.append(event)

    def show_message(self, message: str) -> None:
        self.seen.append(message)

    def close(self) -> None:
        self.seen.append("closed")


def test_beside_a_display_each_line_is_asked_and_all_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    shown, asked = Shown(), []
    run: Any = SimpleNamespace(ask=asked.append)
    display = AskingDisplay(shown, read)
    try:
        display.attach(run, None)
        os.write(write, b"where is it?\nand now?\n")
        until(lambda: len(asked) == 2)
        display.show_message("soon")
        display.write(QueryChanged(query="and now?"))
        display.write(summary())
        display.close()
    finally:
        os.close(read)
        os.close(write)
    assert asked == ["where is it?", "and now?"]
    assert shown.seen == ["soon", QueryChanged(query="and now?"), summary(), "closed"]
    assert capfd.readouterr().err == "not asked, because another question followed: where is it?\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_watch_asks_them_also_without_a_view(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "as_json", lambda: as_json)
    display = (
        watch._display(None, typed=True, piped=True, debug=False)
        if as_json
        else watch._quiet_display(captions=False, piped=True)
    )
    try:
        assert isinstance(display, AskingDisplay)
    finally:
        display.close()
