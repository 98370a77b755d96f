"""The terminal is drawn on row by row, and given back as it was."""

from __future__ import annotations

import atexit
import os
import signal
import termios
from collections.abc import Callable, Iterator

import pytest

from stream.display.live import ENTER, LEAVE, SIZE_UNKNOWN, STYLES, Screen
from stream.display.text import Line
from tests.pty_screen import Pty

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
