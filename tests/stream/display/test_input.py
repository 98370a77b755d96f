"""Lines that are typed or piped in are asked, or refused with a reason."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.control import Ask
from stream.display.input import HELP, KEPT_CHARS, PendingQuestions, QuestionReader, Questions, refusal_reason
from stream.display.lines import JsonDisplay, LinesDisplay
from stream.display.progress import ProgressDisplay
from stream.events import QueryChanged
from stream.sinks.base import SINGLE_CAMERA, Display
from stream.untrusted import QUERY_LIMIT_CHARS
from tests.support.events import frame, summary
from tests.support.network import LIMIT_S, until
from tests.support.runs import ScriptedRun


class Piped:
    """A reader at the end of a pipe, and its calls."""

    def __init__(self) -> None:
        self.questions: queue.Queue[str] = queue.Queue()
        self.replies: queue.Queue[str] = queue.Queue()
        self.source, self.sink = os.pipe()
        pending = PendingQuestions(lambda command: self.questions.put(command.query))
        self.reader = QuestionReader(self.source, lambda line: pending.put(line, self.replies.put))

    def end(self) -> None:
        os.close(self.sink)
        self.sink = -1


@pytest.fixture
def piped() -> Iterator[Piped]:
    pipe = Piped()
    yield pipe
    pipe.reader.close()
    pipe.reader.close()
    os.close(pipe.source)
    if pipe.sink >= 0:
        pipe.end()


def test_each_line_is_asked(piped: Piped) -> None:
    os.write(piped.sink, "who?\r\n what\x1b[D\tnow 你? \nand the".encode())
    assert [piped.questions.get(timeout=LIMIT_S) for _ in range(2)] == ["who?", "what now 你?"]
    piped.end()
    assert piped.questions.get(timeout=LIMIT_S) == "and the"
    piped.reader._thread.join(LIMIT_S)
    assert not piped.reader._thread.is_alive()


def test_lines_that_are_no_question_are_refused(piped: Piped) -> None:
    os.write(piped.sink, b"  \n" + b"x" * (QUERY_LIMIT_CHARS + 1) + b"\nwho?\n")
    assert piped.questions.get(timeout=LIMIT_S) == "who?"
    assert [piped.replies.get(timeout=LIMIT_S) for _ in range(2)] == [
        "not asked: the question is empty",
        "not asked: a question has at most 4000 characters, this one has 4001",
    ]
    assert piped.questions.empty()


def test_a_descriptor_that_cannot_be_read_ends_it() -> None:
    source, sink = os.pipe()
    reader = QuestionReader(sink, print)
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
    assert piped.questions.get(timeout=LIMIT_S) == "é你"


def test_a_line_without_an_end_is_bounded(piped: Piped) -> None:
    for _ in range(2 * KEPT_CHARS // 4096):
        os.write(piped.sink, b"x" * 4096)
    piped.end()
    assert "this one has" in piped.replies.get(timeout=LIMIT_S)
    assert len(piped.reader._line) <= KEPT_CHARS


@given(st.text(max_size=40))
def test_a_question_is_printable_and_one_line(line: str) -> None:
    questions: list[str] = []
    PendingQuestions(lambda command: questions.append(command.query)).put(line, lambda reason: None)
    assert all(question.isprintable() or not question.isascii() for question in questions)
    assert not any("\n" in question or "\x1b" in question for question in questions)


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


def test_a_line_that_is_no_question_is_refused_once_for_all_cameras() -> None:
    questions = Questions(["door", "yard"])
    refused: list[str] = []
    questions.put("who?", refused.append)
    asked_questions: list[str] = []
    for name in ("door", "yard"):
        questions.add(name, lambda command, name=name: asked_questions.append(f"{name} {command.query}"))  # type: ignore[misc]
    questions.put("  ", refused.append)
    questions.put("door:", refused.append)
    questions.remove("yard")
    questions.put("who?", refused.append)
    assert refused == ["not asked: no camera runs", *["not asked: the question is empty"] * 2]
    assert asked_questions == ["door who?"]


def test_a_question_to_an_unknown_camera_is_refused_with_the_names() -> None:
    questions = Questions(["door", "yard", "gate"])
    refused: list[str] = []
    asked_questions: list[str] = []
    for name in ("door", "yard"):
        questions.add(name, lambda command, name=name: asked_questions.append(f"{name} {command.query}"))  # type: ignore[misc]
    questions.put("nosuch: is it open?", refused.append)
    questions.put("gate:is it open?", refused.append)
    assert refused == [
        "not asked: no camera is called 'nosuch'; there are door, yard, gate",
        "not asked: gate does not run; running: door, yard",
    ]
    questions.remove("yard")
    questions.put("is it 10:30 there?", refused.append)
    questions.put("10:30 on the clock?", refused.append)
    assert asked_questions == ["door is it 10:30 there?", "door 10:30 on the clock?"]
    assert len(refused) == 2


def test_to_a_camera_without_a_name_any_line_is_a_question() -> None:
    questions = Questions(SINGLE_CAMERA)
    asked_questions: list[str] = []
    questions.add("", lambda command: asked_questions.append(command.query))
    questions.put("door: who?", print)
    assert asked_questions == ["door: who?"]


@pytest.mark.parametrize("names", [SINGLE_CAMERA, ("door", "yard")])
@pytest.mark.parametrize("kind", ["lines", "json", "progress"])
def test_a_display_asks_each_line_that_it_reads_until_the_run_ends(
    kind: str, names: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    if kind == "progress" and names is not SINGLE_CAMERA:
        return
    read_fd, write_fd = os.pipe()
    display: Display
    if kind == "progress":
        display = ProgressDisplay(captions=False, questions_fd=read_fd)
    elif kind == "json":
        display = JsonDisplay(names, captions=False, questions_fd=read_fd)
    else:
        display = LinesDisplay(None, names, questions_fd=read_fd)
    runs = {name: ScriptedRun([]) for name in names}
    try:
        for name, run in runs.items():
            display.attach(run, None, name)
            display.write(frame(0, 0.0), name)
        os.write(write_fd, b"\n/help\nwhere is it?\nand now?\n")
        until(lambda: all(len(run.commands) == 2 for run in runs.values()))
        for name in names:
            display.write(QueryChanged(query="and now?"), name)
            display.write(summary(), name)
        display.close()
    finally:
        os.close(read_fd)
        os.close(write_fd)
    assert all(run.commands == [Ask("where is it?"), Ask("and now?")] for run in runs.values())
    err = capfd.readouterr().err
    assert err.index("not asked: the question is empty") < err.index(HELP)
    assert err.count("not asked: the question is empty") == 1
    assert err.count("not asked, because another question followed: where is it?") == len(names)


@pytest.mark.parametrize("line", ["/foo", "/Stop now", "/", " /watch"])
def test_a_command_that_there_is_not_is_not_asked(line: str) -> None:
    questions, queries, replies = Questions(("",)), [], []
    questions.add("", lambda command: queries.append(command.query))
    questions.put(line, replies.append)
    assert queries == []
    assert replies == [f"not asked: there is no command {line.split()[0].lower()}; /help lists them"]


def test_a_path_is_no_command() -> None:
    questions, queries, replies = Questions(("",)), [], []
    questions.add("", lambda command: queries.append(command.query))
    questions.put("/dev/video0 shows what?", replies.append)
    assert (queries, replies) == (["/dev/video0 shows what?"], [])


@pytest.mark.parametrize("line", ["/quit", " /Exit", "/q"])
def test_a_command_quits_all_cameras_as_one_ctrl_c_does(line: str) -> None:
    signals: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: signals.append(number))
    try:
        questions = Questions(("yard", "door"))
        queries: list[str] = []
        for name in ("yard", "door"):
            questions.add(name, lambda command: queries.append(command.query))
        questions.put(line, queries.append)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (signals, queries) == ([signal.SIGINT], [])
