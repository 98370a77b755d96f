"""Questions from standard input, where the run has no view of its own for them."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from stream import logs
from stream.commands import watch
from stream.display.input import AskingDisplay
from stream.events import Event
from stream.sinks.base import Display
from tests.support.events import summary
from tests.support.network import until


class Shown(Display):
    def __init__(self) -> None:
        self.seen: list[object] = []

    def write(self, event: Event) -> None:
        self.seen.append(event)

    def show_message(self, message: str) -> None:
        self.seen.append(message)

    def close(self) -> None:
        self.seen.append("closed")


def test_each_line_is_asked_and_all_is_shown() -> None:
    read, write = os.pipe()
    shown, asked = Shown(), []
    run: Any = SimpleNamespace(ask=asked.append)
    display = AskingDisplay(shown, read)
    try:
        display.attach(run, None)
        os.write(write, b"where is it?\nand now?\n")
        until(lambda: len(asked) == 2)
        display.show_message("soon")
        display.write(summary())
        display.close()
    finally:
        os.close(read)
        os.close(write)
    assert asked == ["where is it?", "and now?"]
    assert shown.seen == ["soon", summary(), "closed"]


@pytest.mark.parametrize("as_json", [False, True])
def test_watch_asks_them_also_without_a_view(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "as_json", lambda: as_json)
    display = watch._display(None, typed=True, piped=True, debug=False) if as_json else _quiet()
    try:
        assert isinstance(display, AskingDisplay)
    finally:
        display.close()


def _quiet() -> Display:
    return watch._quiet_display(captions=False, piped=True)
