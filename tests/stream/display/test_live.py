"""The live view on a terminal: drawn while nothing happens, typed on, and gone without a trace."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator

import pytest

from stream.config import QUERY_LIMIT_CHARS
from stream.display import live as live_view
from stream.display.live import ENTER, LAST_ENTRIES, LEAVE, SIZE_UNKNOWN, STYLES, LineWriter, LiveDisplay, Screen
from stream.display.text import Line
from stream.events import AnswerDeltaEvent, Event, Notice, QueryChanged, Started
from tests.support.events import answer, frame, summary
from tests.support.runs import ScriptedRun
from tests.support.terminal import Pty


class Terminal:
    """A live view of a run that only the test drives."""

    def __init__(self, *, keys: bool = True, questions: int | None = None) -> None:
        self.pty = Pty()
        self.run = ScriptedRun([])
        self.sink = LiveDisplay(Screen(self.pty.program, colour=True), self.pty.program if keys else None, questions)

    def begin(self, *events: Event) -> None:
        self.sink.attach(self.run, None)
        for event in (Started(source="a", model="tiny", query="What?", backend="cpu"), *events):
            self.sink.write(event)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.sink.close()
    made.pty.close()


def test_text_is_shown_as_it_is_spoken(terminal: Terminal) -> None:
    terminal.begin(frame(0, 0.0), AnswerDeltaEvent(answer=0, text="a red ", pts_s=2.0))
    terminal.pty.shows("0:02.0  a red")
    terminal.sink.write(AnswerDeltaEvent(answer=0, text="circle", pts_s=2.0))
    terminal.pty.shows("0:02.0  a red circle")
    terminal.pty.shows("tiny  What?")


def test_it_goes_on_while_no_event_comes(terminal: Terminal) -> None:
    terminal.begin()
    terminal.run.dropped["capture.replaced"] = 7
    terminal.pty.shows("capture.replaced 7")
    terminal.pty.resize(40, 8)
    terminal.pty.shows("› type a question and press Enter · Ct…")


def test_a_typed_question_is_asked(terminal: Terminal) -> None:
    terminal.begin(frame(0, 0.0))
    terminal.pty.shows("type a question")
    terminal.pty.type("Who\x7fo?")
    terminal.pty.shows("› Who?")
    terminal.pty.type("\n")
    terminal.pty.shows("asking: Who?")
    assert terminal.run.asked == ["Who?"]
    terminal.sink.write(QueryChanged(query="Who?"))
    terminal.pty.shows("tiny  Who?")


def test_a_question_is_shown_until_it_is_taken(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "REMARK_S", 0.0)
    terminal.begin(Notice(code="loading", message="loading tiny"))
    terminal.pty.shows("type a question")
    terminal.pty.type("Who?\n")
    terminal.pty.shows("loading tiny · asking: Who?")
    terminal.sink.write(QueryChanged(query="another one"))
    terminal.sink.write(frame(0, 0.0))
    terminal.pty.until(lambda: any(row.strip() == "asking: Who?" for row in terminal.pty.rows.values()))
    terminal.sink.write(QueryChanged(query="Who?"))
    terminal.pty.until(lambda: not any("asking: Who?" in row for row in terminal.pty.rows.values()))


def test_what_is_no_question_is_refused_in_the_view(terminal: Terminal) -> None:
    terminal.begin()
    terminal.pty.shows("type a question")
    terminal.pty.type("\n")
    terminal.pty.shows("not asked: an empty line is no question")
    for _ in range(5):
        terminal.pty.type("x" * (QUERY_LIMIT_CHARS // 4))
        terminal.pty.shows("› " + "x" * 70)
    terminal.pty.type("\n")
    terminal.pty.shows("not asked: a question has at most 4000 characters, this one has 5000")
    assert terminal.run.asked == []


def test_ctrl_l_draws_everything_anew(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "WHOLE_S", 1e9)
    terminal.begin()
    terminal.pty.shows("tiny  What?")
    terminal.pty.rows.clear()
    terminal.pty.type("\x0c")
    terminal.pty.shows("tiny  What?")


def test_from_time_to_time_everything_is_drawn_anew(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "WHOLE_S", 0.01)
    terminal.begin()
    terminal.pty.shows("tiny  What?")
    terminal.pty.rows.clear()
    terminal.pty.shows("tiny  What?")


def test_ctrl_z_suspends(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: stopped.append(number))
    terminal.begin()
    terminal.pty.shows("type a question")
    terminal.pty.type("\x1a")
    terminal.pty.until(lambda: terminal.pty.written.count(ENTER) == 2)
    assert len(stopped) == 1


def test_a_keyboard_that_has_gone_leaves_the_view() -> None:
    terminal, (reader, writer) = Terminal(), os.pipe()
    terminal.sink = LiveDisplay(Screen(terminal.pty.program, colour=True), reader)
    terminal.begin()
    os.close(writer)
    terminal.pty.until(lambda: terminal.pty.rows.get(24, "").strip() == "Ctrl-C ends")
    terminal.sink.close()
    os.close(reader)
    terminal.pty.close()


def test_lines_that_are_piped_in_are_asked_too() -> None:
    reader, writer = os.pipe()
    terminal = Terminal(keys=False, questions=reader)
    terminal.begin()
    os.write(writer, b"\nWho?\n")
    terminal.pty.shows("not asked: an empty line is no question")
    terminal.pty.until(lambda: terminal.run.asked == ["Who?"])
    terminal.sink.close()
    terminal.pty.close()
    os.close(reader)
    os.close(writer)


def test_a_remark_of_a_signal_stays(terminal: Terminal, capfd: pytest.CaptureFixture[str]) -> None:
    terminal.sink.show_message("before the view")
    terminal.begin()
    terminal.sink.show_message("finishing soon")
    terminal.pty.shows("finishing soon")
    terminal.sink.close()
    terminal.sink.show_message("after the view")
    assert capfd.readouterr().err == "before the view\nafter the view\n"


def test_at_the_end_the_last_words_stand_on_the_terminal(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.begin(frame(0, 0.0), *(answer(number, f"answer {number}") for number in range(LAST_ENTRIES + 5)))
    terminal.sink.write(answer(17.0, "word " * 30))
    terminal.sink.write(QueryChanged(query="Who?"))
    terminal.sink.write(summary())
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
        "3 frames (0:01.0) · 2 answers · 1 cut · 64 of 240 tokens a frame, 3.1× less work",
        "· 2 frames a second · cpu texture",
    ]
    terminal.pty.read()
    assert terminal.pty.written.startswith(ENTER)
    assert terminal.pty.written.endswith(LEAVE)
    assert terminal.pty.echoes()


def test_a_run_that_failed_before_its_first_frame_has_no_summary(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.begin()
    terminal.sink.write(summary(frames=0, ended="error", error="no model"))
    assert capsys.readouterr().err == ""


def test_what_others_write_to_stderr_becomes_a_remark(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = os.fdopen(os.dup(terminal.pty.program), "w", encoding="utf-8")
    monkeypatch.setattr(sys, "stderr", screen)
    terminal.begin()
    print("note: mind the gap", file=sys.stderr)
    terminal.pty.shows("note: mind the gap")
    terminal.sink.close()
    assert sys.stderr is screen
    screen.close()


def test_before_the_view_one_word_says_that_something_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    pty = Pty()
    with os.fdopen(os.dup(pty.program), "w", encoding="utf-8") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        sink = LiveDisplay(Screen(pty.program, colour=True), None)
        assert pty.read() == "starting"
        sink.close()
        assert pty.read() == "\r\x1b[K"
        sink.close()
        assert pty.read() == ""
    pty.close()


def test_remark_lines_are_whole() -> None:
    told: list[str] = []
    lines = LineWriter(told.append)
    assert lines.writable()
    print("one", "two", file=lines)
    lines.write("\nthr")
    assert told == ["one two"]
    print("ee\nfour", file=lines)
    assert told == ["one two", "three", "four"]


def test_a_terminal_that_has_gone_ends_the_drawing_and_not_the_run() -> None:
    terminal = Terminal(keys=False)
    terminal.begin()
    terminal.pty.shows("Ctrl-C ends")
    view = terminal.sink._view
    assert view is not None
    os.close(terminal.pty.person)
    view._thread.join(10)
    assert not view._thread.is_alive()
    terminal.sink.write(frame(0, 0.0))
    terminal.sink.close()
    os.close(terminal.pty.program)


HELLO: list[Line] = [[("hello", "title")], [("wor", "note"), ("ld", "")]]
SIZE = (20, 2)


@pytest.fixture
def pty() -> Iterator[Pty]:
    made = Pty(*SIZE)
    yield made
    made.close()


@pytest.fixture
def screen(pty: Pty) -> Iterator[Screen]:
    made = Screen(pty.program, colour=True)
    made.open()
    yield made
    made.close()


def test_the_terminal_is_taken_and_given_back(pty: Pty, screen: Screen) -> None:
    assert pty.read() == ENTER
    assert not pty.echoes()
    assert termios.tcgetattr(pty.program)[3] & termios.ISIG
    screen.close()
    assert pty.read() == LEAVE
    assert pty.echoes()
    screen.close()
    assert pty.read() == ""


def test_a_program_that_ends_in_any_way_gives_the_terminal_back(pty: Pty, monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    Screen(pty.program, colour=True).open()
    assert not pty.echoes()
    at_exit[0]()
    assert pty.echoes()


def test_only_rows_that_differ_are_written(pty: Pty, screen: Screen) -> None:
    screen.draw(HELLO, SIZE)
    assert "\x1b[1;1H\x1b[1mhello\x1b[0m\x1b[K" in pty.read()
    screen.draw([HELLO[0], [("you", "")]], SIZE)
    assert pty.read() == "\x1b[2;1Hyou\x1b[K"
    screen.draw([HELLO[0], [("you", "")]], SIZE)
    assert pty.read() == ""
    screen.forget()
    screen.draw(HELLO, SIZE)
    assert pty.read().count(";1H") == 2


def test_a_full_row_is_not_erased_at_its_end(pty: Pty, screen: Screen) -> None:
    pty.read()
    screen.draw([[("x" * 20, "")], [("x" * 19, "")]], SIZE)
    assert pty.read().split("\x1b[2;1H")[0].endswith("x" * 20)


def test_another_size_clears(pty: Pty, screen: Screen) -> None:
    screen.draw(HELLO, SIZE)
    pty.resize(10, 2)
    assert screen.size == (10, 2)
    pty.read()
    screen.draw(HELLO, screen.size)
    assert pty.read().startswith("\x1b[2J")


def test_a_terminal_that_does_not_know_its_size_has_a_usual_one(pty: Pty, screen: Screen) -> None:
    pty.resize(0, 0)
    assert screen.size == SIZE_UNKNOWN


def test_one_row_can_be_drawn_between(pty: Pty, screen: Screen) -> None:
    screen.draw_row(1, [("early", "")])
    screen.draw(HELLO, SIZE)
    pty.read()
    screen.draw_row(1, [("typed", "")])
    screen.draw_row(1, [("typed", "")])
    assert pty.read() == "\x1b[2;1Htyped\x1b[K"


def test_without_colour_or_unicode(pty: Pty) -> None:
    screen = Screen(pty.program, colour=False, unicode=False)
    screen.draw([[("a · é ─…", name)] for name in STYLES], (20, len(STYLES)))
    written = pty.read()
    assert "a | ? -~" in written
    assert "\x1b[3" not in written.replace("\x1b[3m", "").replace("\x1b[3;1H", "")


def test_a_place_without_terminal_settings_is_drawn_on_all_the_same() -> None:
    reader, writer = os.pipe()
    screen = Screen(writer, colour=True)
    screen.open()
    screen.close()
    assert os.read(reader, 100).decode() == ENTER + LEAVE
    os.close(reader)
    os.close(writer)


def test_a_terminal_that_has_gone_is_no_error_at_the_end() -> None:
    pty = Pty()
    screen = Screen(pty.program, colour=True)
    screen.open()
    pty.close()
    screen.close()


def test_ctrl_z_gives_the_terminal_back_until_the_program_goes_on(
    pty: Pty, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = []
    monkeypatch.setattr(os, "killpg", lambda group, number: stopped.append((number, pty.echoes())))
    screen.suspend()
    assert stopped == [(signal.SIGTSTP, True)]
    assert not pty.echoes()
    assert pty.read() == ENTER + LEAVE + ENTER
