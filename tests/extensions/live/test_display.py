"""The live view on a terminal: drawn while nothing happens, typed on, and gone without a trace."""

from __future__ import annotations

import atexit
import io
import os
import re
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from stream.control import Ask
from stream.events import AnswerDeltaEvent, Event, Notice, QueryChanged, Started
from stream.extensions.live import display as live
from stream.extensions.live.display import LAST_ENTRIES, LineWriter, LiveDisplay, TerminalModes
from stream.untrusted import QUERY_LIMIT_CHARS
from tests.support.events import answer, frame, summary
from tests.support.network import LIMIT_S, until
from tests.support.runs import ScriptedRun
from tests.support.terminal import Pty

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
"""The other screen, and back."""


class Terminal:
    """A live view of a run that only the test drives."""

    def __init__(self, *, keys: bool = True, questions: int | None = None) -> None:
        self.pty = Pty()
        self.run = ScriptedRun([])
        self.display = LiveDisplay(self.pty.program, self.pty.program if keys else None, questions_fd=questions)

    def begin(self, *events: Event) -> None:
        self.display.attach(self.run, None)
        for event in (Started(source="a", model="tiny", query="What?", backend="cpu"), *events):
            self.display.write(event)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    live_terminal = Terminal()
    yield live_terminal
    live_terminal.display.close()
    live_terminal.pty.close()


def test_text_is_shown_as_it_is_generated(terminal: Terminal) -> None:
    terminal.begin(frame(0, 0.0), AnswerDeltaEvent(answer=0, text="a red ", pts_s=2.0))
    terminal.pty.shows("0:02.0  a red")
    terminal.display.write(AnswerDeltaEvent(answer=0, text="circle", pts_s=2.0))
    terminal.pty.shows("0:02.0  a red circle")
    terminal.pty.shows("tiny  What?")


def test_it_goes_on_while_no_event_comes(terminal: Terminal) -> None:
    terminal.begin()
    terminal.run.dropped["capture.replaced"] = 7
    terminal.pty.shows("7 frames")
    terminal.pty.resize(40, 8)
    terminal.pty.shows("› a question, Enter · Ctrl-C ends")


def test_a_typed_question_is_asked(terminal: Terminal) -> None:
    terminal.begin(frame(0, 0.0))
    terminal.pty.shows("type a question")
    terminal.pty.type("Who\x7fo?")
    terminal.pty.shows("› Who?")
    terminal.pty.type("\n")
    terminal.pty.shows("asking: Who?")
    assert terminal.run.commands == [Ask("Who?")]
    terminal.display.write(QueryChanged(query="Who?"))
    terminal.pty.shows("tiny  Who?")


def test_a_question_is_shown_until_it_is_taken(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MESSAGE_S", 0.0)
    terminal.begin(Notice(code="loading", message="loading tiny"))
    terminal.pty.shows("type a question")
    terminal.pty.type("Who?\n")
    terminal.pty.shows("loading tiny · asking: Who?")
    terminal.display.write(QueryChanged(query="another one"))
    terminal.display.write(frame(0, 0.0))
    terminal.pty.until(lambda: any(row.strip() == "asking: Who?" for row in terminal.pty.rows))
    terminal.display.write(QueryChanged(query="Who?"))
    terminal.pty.until(lambda: not any("asking: Who?" in row for row in terminal.pty.rows))


def test_invalid_questions_are_refused_in_the_view(terminal: Terminal) -> None:
    terminal.begin()
    terminal.pty.shows("type a question")
    terminal.pty.type("\n")
    terminal.pty.shows("not asked: the question is empty")
    for _ in range(5):
        terminal.pty.type("x" * (QUERY_LIMIT_CHARS // 4))
        terminal.pty.shows("› " + "x" * 70)
    terminal.pty.type("\n")
    terminal.pty.shows("not asked: a question has at most 4000 characters, this one has 5000")
    assert terminal.run.commands == []


def test_the_line_is_edited_and_questions_come_back(terminal: Terminal) -> None:
    terminal.begin(frame(0, 0.0))
    terminal.pty.shows("type a question")
    terminal.pty.type("Were?" + 4 * "\x1b[D" + "h\r")
    terminal.pty.shows("asking: Where?")
    terminal.pty.type("\x1b[A")
    terminal.pty.shows("› Where?")
    terminal.pty.type("\x15")
    terminal.pty.shows("› type a question")


def test_keys_typed_before_the_view_come_into_it_and_are_not_echoed(terminal: Terminal) -> None:
    terminal.pty.type("Who?")
    assert "Who?" not in terminal.pty.read()
    terminal.begin()
    terminal.pty.shows("› Who?")


def test_ctrl_z_gives_the_terminal_back_until_the_program_goes_on(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[tuple[int, bool]] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: stopped.append((number, terminal.pty.echoes())))
    monkeypatch.setattr(signal, "pthread_kill", lambda thread, number: stopped.append((number, True)))
    terminal.begin()
    terminal.pty.shows("type a question")
    terminal.pty.type("\x1a")
    terminal.pty.until(lambda: terminal.pty.output.count(ENTER) == 2)
    assert stopped == [(signal.SIGTSTP, True)] * 2
    assert not terminal.pty.echoes()


def test_a_keyboard_that_has_gone_ends_the_view_and_not_the_run() -> None:
    terminal, (reader, writer) = Terminal(), os.pipe()
    terminal.display.close()
    terminal.display = LiveDisplay(terminal.pty.program, reader)
    terminal.begin()
    terminal.pty.shows("type a question")
    os.close(writer)
    terminal.pty.until(lambda: LEAVE in terminal.pty.output)
    terminal.display.write(frame(0, 0.0))
    terminal.display.close()
    os.close(reader)
    terminal.pty.close()


def test_lines_that_are_piped_in_are_asked_too() -> None:
    reader, writer = os.pipe()
    terminal = Terminal(keys=False, questions=reader)
    terminal.begin()
    os.write(writer, b"\nWho?\n")
    terminal.pty.shows("not asked: the question is empty")
    terminal.pty.until(lambda: terminal.run.commands == [Ask("Who?")])
    terminal.display.close()
    terminal.pty.close()
    os.close(reader)
    os.close(writer)


def test_a_message_of_a_signal_stays(terminal: Terminal, capfd: pytest.CaptureFixture[str]) -> None:
    terminal.display.show_message("before the view")
    terminal.begin()
    terminal.display.show_message("finishing soon")
    terminal.pty.shows("finishing soon")
    terminal.display.close()
    terminal.display.show_message("after the view")
    assert capfd.readouterr().err == "before the view\nafter the view\n"


def test_at_the_end_the_last_entries_stand_on_the_terminal(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.begin(frame(0, 0.0), *(answer(number, f"answer {number}") for number in range(LAST_ENTRIES + 5)))
    terminal.pty.shows("type a question")
    terminal.display.write(answer(17.0, "word " * 30))
    terminal.display.write(QueryChanged(query="Who?"))
    terminal.display.write(summary())
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[-4:] == [
        "0:16.0  answer 16",
        "0:17.0  " + "word " * 13 + "word",
        " " * 8 + "word " * 13 + "word",
        " " * 8 + "word word",
    ]
    assert len(lines) == LAST_ENTRIES + 1
    assert err.splitlines() == [
        "asked: Who?",
        "3 frames (0:01.0) · 2 answers · 1 cut · 3.1× less work · 2 frames a second",
    ]
    terminal.pty.until(lambda: LEAVE in terminal.pty.output)
    assert terminal.pty.output.count(ENTER) == terminal.pty.output.count(LEAVE) == 1
    assert terminal.pty.echoes()


def test_a_view_that_has_not_begun_can_be_closed() -> None:
    for _ in range(5):
        terminal = Terminal()
        terminal.begin()
        view = terminal.display._view
        assert view is not None
        terminal.display.close()
        view._thread.join(LIMIT_S)
        assert not view._thread.is_alive()
        assert terminal.pty.echoes()
        terminal.pty.close()


def test_text_on_stderr_becomes_a_message(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = os.fdopen(os.dup(terminal.pty.program), "w", encoding="utf-8")
    monkeypatch.setattr(sys, "stderr", screen)
    terminal.begin()
    print("note: mind the gap", file=sys.stderr)
    terminal.pty.shows("note: mind the gap")
    terminal.display.close()
    assert sys.stderr is screen
    screen.close()


def test_before_the_view_one_word_shows_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    pty = Pty()
    with os.fdopen(os.dup(pty.program), "w", encoding="utf-8") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        display = LiveDisplay(pty.program, None)
        pty.until(lambda: pty.output == "starting")
        display.close()
        pty.until(lambda: pty.output == "starting\r\x1b[K")
        display.close()
        assert pty.read() == ""
    pty.close()


def test_lines_of_a_writer_are_whole() -> None:
    messages: list[str] = []
    lines = LineWriter(messages.append)
    assert lines.writable()
    print("one", "two", file=lines)
    lines.write("\nthr")
    assert messages == ["one two"]
    print("ee\nfour", file=lines)
    assert messages == ["one two", "three", "four"]


def test_a_terminal_that_takes_no_output_does_not_block_the_run(terminal: Terminal) -> None:
    terminal.begin()
    terminal.pty.shows("type a question")
    view = terminal.display._view
    assert view is not None
    termios.tcflow(terminal.pty.program, termios.TCOOFF)
    terminal.display.write(answer(0.0, "the first"))
    until(lambda: "the first" in str(view._drawn_rows))
    for number in range(500):
        terminal.display.write(answer(number, f"answer {number}"))
    assert "answer" not in terminal.pty.read()
    termios.tcflow(terminal.pty.program, termios.TCOON)
    terminal.pty.shows("answer 499")


def test_ctrl_c_interrupts_and_the_modes_are_given_back_in_any_way(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[Callable[[], None]] = []
    terminal.display.close()
    assert terminal.pty.echoes()
    monkeypatch.setattr(atexit, "register", at_exit.append)
    TerminalModes(terminal.pty.program).take()
    assert not terminal.pty.echoes()
    assert termios.tcgetattr(terminal.pty.program)[3] & termios.ISIG
    at_exit[0]()
    assert terminal.pty.echoes()


@pytest.mark.parametrize(("no_color", "encoding"), [("1", "utf-8"), ("", "ascii")])
def test_without_colour_or_unicode(no_color: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    terminal = Terminal()
    terminal.begin(Notice(code="loading", message="loading tiny"))
    terminal.pty.shows("loading tiny")
    terminal.display.close()
    terminal.pty.close()
    colours = re.findall(r"\x1b\[[0-9;]*3[0-7]m", terminal.pty.output)
    assert bool(colours) is not bool(no_color)
    assert terminal.pty.output.isascii() is (encoding == "ascii")


def test_a_terminal_that_has_gone_ends_the_drawing_and_not_the_run() -> None:
    terminal = Terminal(keys=False)
    terminal.begin()
    terminal.pty.shows("Ctrl-C ends")
    view = terminal.display._view
    assert view is not None
    os.close(terminal.pty.person)
    view._thread.join(LIMIT_S)
    assert not view._thread.is_alive()
    terminal.display.write(frame(0, 0.0))
    terminal.display.close()
    os.close(terminal.pty.program)


STARTED = Started(source="a", model="tiny", query="What?", backend="cpu")


class Cameras:
    """Two cameras that only the test drives."""

    def __init__(self, display: LiveDisplay) -> None:
        self.runs = {name: ScriptedRun([]) for name in ("door", "yard")}
        self.cameras = {name: display.camera(name) for name in self.runs}
        for name, run in self.runs.items():
            self.cameras[name].attach(run, None)
            self.cameras[name].write(STARTED)


@pytest.fixture
def pty() -> Iterator[Pty]:
    with closing(Pty(80, 16)) as pseudo_terminal:
        yield pseudo_terminal


def test_each_camera_has_its_pane_and_what_is_typed_goes_to_one_or_to_all(pty: Pty) -> None:
    with closing(LiveDisplay(pty.program, pty.program, ["door", "yard", "gone"])) as view:
        cameras = Cameras(view)
        pty.shows("opening")
        cameras.cameras["door"].write(frame(0, 0.0))
        cameras.cameras["door"].write(AnswerDeltaEvent(answer=0, text="a per", pts_s=0.0))
        pty.shows("0:00.0  a per")
        cameras.cameras["door"].write(answer(0.0, "a person"))
        cameras.cameras["door"].write(answer(2.0, "a person"))
        pty.shows("a person (×2, to 0:02.0)")
        view.show_failure("gone", "it is not there")
        pty.shows("3 cameras, 1 not well")
        pty.type("door: who?\r")
        until(lambda: cameras.runs["door"].commands == [Ask("who?")])
        pty.type("where is it?\r")
        until(lambda: cameras.runs["yard"].commands == [Ask("where is it?")])
        assert cameras.runs["door"].commands == [Ask("who?"), Ask("where is it?")]
        view.show_message("finishing")
        pty.shows("finishing")
        cameras.cameras["door"].write(summary())
        pty.shows("finished")


def test_the_last_answers_of_each_camera_stay_on_the_terminal(pty: Pty, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(live, "print_answer", lambda at, text: lines.append(f"{at}  {text}"))
    with closing(LiveDisplay(pty.program, None, ["door", "yard"])) as view:
        cameras = Cameras(view)
        for camera in cameras.cameras.values():
            camera.write(Notice(code="model-world", message="knows scenes only"))
        for second in range(15):
            cameras.cameras["door"].write(answer(float(second), f"answer {second}"))
        cameras.cameras["yard"].write(answer(0.0, "no person"))
        cameras.cameras["yard"].write(answer(2.0, "word " * 20))
        pty.shows("note: knows scenes only")
        assert sum("knows scenes only" in row for row in pty.rows) == 1, "once for all cameras"
    assert lines[:12] == [f"door  0:{second:02}.0  answer {second}" for second in range(3, 15)]
    assert lines[12] == "yard  0:00.0  no person"
    first, second = lines[13].split("\n")
    assert first.startswith("yard  0:02.0  word word")
    assert second.startswith("              word")
    assert len(lines) == 14
