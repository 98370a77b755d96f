"""Display of several cameras for programs that measure them: remembers their runs and what failed."""

from __future__ import annotations

from abc import abstractmethod

from stream.events import Event
from stream.monitor.health import RunHandle
from stream.sinks.base import Display


class WatchedFleet(Display):
    """Display that passes each event to `note`; `failures` has a line for each failure and note: none in a good run."""

    def __init__(self) -> None:
        self.runs: dict[str, RunHandle] = {}
        self.failures: list[str] = []

    @abstractmethod
    def note(self, name: str, event: Event) -> None:
        """Take in an event of a camera; called in the camera's own thread."""

    def attach(self, run: RunHandle, frames: int | None, camera: str = "") -> None:
        self.runs[camera] = run

    def write(self, event: Event, camera: str = "") -> None:
        self.note(camera, event)

    def show_failure(self, camera: str, message: str) -> None:
        self.failures.append(f"{camera}: {message}")

    def show_unreachable(self, camera: str, message: str) -> None:
        self.show_failure(camera, message)

    def show_note(self, text: str) -> None:
        self.failures.append(text)

    def show_message(self, message: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing is open."""
