"""Display of several cameras that remembers their events, and acts on them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from stream.events import Event
from stream.monitor.health import RunHandle
from stream.sinks.base import Display

E = TypeVar("E", bound=Event)


class FleetRecorder(Display):
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
        self.names: set[str] = set()

    def of(self, name: str, kind: type[E]) -> list[E]:
        return [event for event in tuple(self.events.get(name, ())) if isinstance(event, kind)]

    def once(self, name: str, condition: bool) -> bool:
        """True for the first time that `condition` is."""
        with self.lock:
            if not condition or name in self.names:
                return False
            self.names.add(name)
            return True

    def camera(self, name: str) -> Display:
        self.events[name] = []
        return super().camera(name)

    def attach(self, run: RunHandle, frames: int | None, camera: str = "") -> None:
        self.runs[camera] = run

    def write(self, event: Event, camera: str = "") -> None:
        self.events[camera].append(event)
        self.on_event(self, camera, event)

    def show_failure(self, camera: str, message: str) -> None:
        self.failures[camera] = message

    def show_unreachable(self, camera: str, message: str) -> None:
        self.waits[camera] = message

    def show_note(self, text: str) -> None:
        self.notes.append(text)

    def show_message(self, message: str) -> None:
        self.messages.append(message)

    def close(self) -> None:
        pass
