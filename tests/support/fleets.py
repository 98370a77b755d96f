"""Displays of several cameras that remember, and act on what they are told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from stream.events import Event
from stream.fleet.display import FleetDisplay
from stream.monitor.health import RunHandle
from stream.sinks.base import Display

E = TypeVar("E", bound=Event)


class FleetRecorder(FleetDisplay):
    """Remembers the events of each camera; `on_event` is called with each, after that."""

    def __init__(self, on_event: Callable[[FleetRecorder, str, Event], None] = lambda *_: None) -> None:
        self.on_event = on_event
        self.lock = threading.RLock()
        self.events: dict[str, list[Event]] = {}
        self.runs: dict[str, RunHandle] = {}
        self.failures: dict[str, str] = {}
        self.notes: list[str] = []
        self.waits: dict[str, str] = {}
        self.messages: list[str] = []
        self.done: set[str] = set()

    def of(self, name: str, kind: type[E]) -> list[E]:
        return [event for event in tuple(self.events.get(name, ())) if isinstance(event, kind)]

    def once(self, what: str, when: bool) -> bool:
        """True for the first time that `when` is."""
        with self.lock:
            if not when or what in self.done:
                return False
            self.done.add(what)
            return True

    def camera(self, name: str) -> Display:
        self.events[name] = []
        return _Recorder(self, name)

    def show_failure(self, name: str, message: str) -> None:
        self.failures[name] = message

    def show_unreachable(self, name: str, message: str) -> None:
        self.waits[name] = message

    def show_note(self, text: str) -> None:
        self.notes.append(text)

    def show_message(self, message: str) -> None:
        self.messages.append(message)

    def close(self) -> None:
        pass


class _Recorder(Display):
    def __init__(self, recorder: FleetRecorder, name: str) -> None:
        self._recorder = recorder
        self._name = name

    def attach(self, run: RunHandle, frames: int | None) -> None:
        self._recorder.runs[self._name] = run

    def write(self, event: Event) -> None:
        self._recorder.events[self._name].append(event)
        self._recorder.on_event(self._recorder, self._name, event)

    def show_message(self, message: str) -> None:
        self._recorder.show_message(message)

    def close(self) -> None:
        pass
