"""The choice of a display by the abilities of the output, for one camera as for several."""

from __future__ import annotations

import os

import pytest

from stream import logs
from stream.display import WatchOptions, choice
from stream.display.choice import in_foreground, open_display
from stream.display.lines import JsonDisplay, LinesDisplay
from stream.display.progress import ProgressDisplay
from stream.extension import DisplayOpening, Extension, registry
from stream.extensions.live.display import LiveDisplay
from stream.sinks.base import SINGLE_CAMERA, Display
from tests.support.terminal import Pty

WATCHED = WatchOptions(10.0)
NAMES = pytest.mark.parametrize("names", [SINGLE_CAMERA, ["door"], ["door", "yard"]])


@pytest.fixture
def terminals(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Descriptors that are terminals in this test."""
    descriptors: set[int] = set()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(choice, "in_foreground", descriptors.__contains__)
    return descriptors


@NAMES
@pytest.mark.parametrize(
    ("descriptors", "term", "watch_options", "kind", "keys", "questions_fd"),
    [
        ((0, 1), "xterm", WATCHED, LiveDisplay, 0, None),
        ((1,), "xterm", WATCHED, LiveDisplay, None, None),
        ((1,), "xterm", WatchOptions(None, ask_stdin=True), LiveDisplay, None, 0),
        ((0, 1), "xterm", WatchOptions(None, keyboard=False), LiveDisplay, None, None),
        ((0,), "xterm", WATCHED, LinesDisplay, None, 0),
        ((), "xterm", WATCHED, LinesDisplay, None, None),
        ((), "xterm", WatchOptions(None, ask_stdin=True), LinesDisplay, None, 0),
        ((0, 1), "dumb", WATCHED, LinesDisplay, None, 0),
        ((0, 1), "", WATCHED, LinesDisplay, None, 0),
        ((0, 1), "xterm", WatchOptions(10.0, live=False), LinesDisplay, None, 0),
    ],
)
def test_it_is_a_live_view_or_plain_lines(
    descriptors: tuple[int, ...],
    term: str,
    watch_options: WatchOptions,
    kind: type,
    keys: int | None,
    questions_fd: int | None,
    names: list[str],
    terminals: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminals.update(descriptors)
    monkeypatch.setenv("TERM", term)
    opened = open_display(names, captions=True, watch_options=watch_options)
    try:
        assert type(opened) is kind
        assert getattr(opened, "_keys", None) == keys
        assert opened._questions._questions_fd == questions_fd  # type: ignore[attr-defined]
    finally:
        opened.close()


def display_of_a_package(opening: DisplayOpening) -> Display | None:
    """A display of a package of someone else: lines of several cameras."""
    if len(opening.names) == 1:
        return None
    return LinesDisplay(None, opening.names, questions_fd=opening.keys)


@pytest.mark.parametrize(("names", "kind"), [(["door"], LiveDisplay), (["door", "yard"], LinesDisplay)])
def test_a_package_is_asked_for_its_display_before_the_live_view(
    names: list[str], kind: type, terminals: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminals.update((0, 1))
    package = Extension(name="board", display=f"{__name__}:display_of_a_package")
    monkeypatch.setattr(registry, "installed_extensions", lambda: (package,))
    opened = open_display(names, captions=True, watch_options=WATCHED)
    assert type(opened) is kind
    opened.close()


def test_without_an_extension_a_terminal_has_lines(terminals: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    terminals.update((0, 1))
    monkeypatch.setattr(registry, "own_extensions", lambda: ())
    opened = open_display(["door"], captions=True, watch_options=WATCHED)
    assert type(opened) is LinesDisplay
    opened.close()


@NAMES
def test_if_stdout_belongs_to_an_output_nothing_is_drawn_on_it(names: list[str], terminals: set[int]) -> None:
    terminals.update((0, 1))
    opened = open_display(names, captions=False, watch_options=WatchOptions(None, ask_stdin=True))
    assert type(opened) is (ProgressDisplay if names is SINGLE_CAMERA else LinesDisplay)
    assert opened._questions._questions_fd == 0  # type: ignore[attr-defined]
    opened.close()


@NAMES
@pytest.mark.parametrize("watch_options", [None, WATCHED])
def test_for_machines_it_is_lines_of_json(
    names: list[str], watch_options: WatchOptions | None, terminals: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminals.update((0, 1))
    monkeypatch.setattr(logs, "as_json", lambda: True)
    assert type(open_display(names, captions=True, watch_options=watch_options)) is JsonDisplay


def test_a_terminal_of_another_program_is_left_alone() -> None:
    pty, (reader, writer) = Pty(), os.pipe()
    assert not in_foreground(pty.program)
    assert not in_foreground(reader)
    pty.close()
    os.close(reader)
    os.close(writer)
    assert not in_foreground(reader)
