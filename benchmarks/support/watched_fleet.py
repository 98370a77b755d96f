"""Display of several cameras for programs that measure them: remembers their runs and what failed."""

from __future__ import annotations

from abc import abstractmethod

from stream.events import Event
from stream.fleet.display import FleetDisplay
from stream.monitor.health import RunHandle
from stream.sinks.base import Display


class WatchedFleet(FleetDisplay):
    """Gives each event to `note`; `failures` has a line for each failure and note, which no measurement expects."""

    def __init__(self) -> None:
        self.runs: dict[str, RunHandle] = {}
        self.failures: list[str] = []

    @abstractmethod
    def note(self, name: str, event: Event) -> None:
        """Take in an event of a camera; called in the camera's own thread."""

    def camera(self, name: str) -> Display:
        return _WatchedCamera(self, name)

    def show_failure(self, name: str, message: str) -> None:
        self.failures.append(f"{name}: {message}")

    def show_unreachable(self, name: str, message: str) -> None:
        self.show_failure(name, message)

    def show_note(self, text: str) -> None:
        self.failures.append(text)

    def show_message(self, message: str) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """Nothing is open."""


class _WatchedCamera(Display):
    def __init__(self, fleet: WatchedFleet, name: str) -> None:
        self._fleet = fleet
        self._name = name

    def attach(self, run: RunHandle, frames: int | None) -> None:
        self._fleet.runs[self._name] = run

    def write(self, event: Event) -> None:
        self._fleet.note(self._name, event)

    def show_message(self, message: str) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """Nothing is open."""
