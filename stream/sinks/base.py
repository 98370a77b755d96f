"""Base class of the sinks: `write` receives a run's events in order, `close` ends the output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from stream import logs
from stream.events import Event

if TYPE_CHECKING:
    from stream.config import Config
    from stream.monitor.health import RunHandle, RunMonitor


def program_version() -> str:
    """Version of this program, for the receivers of its events; "unknown" if it is not installed."""
    try:
        return version("arr-coc-stream")
    except PackageNotFoundError:
        return "unknown"


class Sink(ABC):
    """Destination of events. Created before the run, so that an output that cannot be written fails at once.

    One thread calls it. `close` may be called at any moment, more than once, and leaves what was written valid.
    """

    @abstractmethod
    def write(self, event: Event) -> None:
        """Write the next event. Raises OutputError if the output can no longer be written."""

    @abstractmethod
    def close(self) -> None:
        """Complete the output and release it."""


class ReportingSink(Sink):
    """Sink with separate events, which all sinks of the run receive."""

    @abstractmethod
    def take_events(self, upcoming: Event) -> Sequence[Event]:
        """Return its events since the last call; they come before `upcoming`, which no sink has received yet."""


class SharedSink(ABC):
    """Output of several cameras at once, such as a page: each camera's run has a part of it."""

    @abstractmethod
    def part(self, camera: str, config: Config, monitor: RunMonitor) -> Sink:
        """Return the sink of a camera's run. `monitor` receives each event first. To close it leaves the rest open."""

    def unreachable(self, camera: str, reason: str) -> None:
        """Show that the source of a camera cannot be opened yet."""
        return

    def failed(self, camera: str, reason: str) -> None:
        """Show that a camera could not start, or has ended without a summary."""
        return

    @abstractmethod
    def close(self) -> None:
        """End the output."""


SINGLE_CAMERA = ("",)
"""Camera names of a display with one camera: the name is empty, and no line shows it."""


class Display(Sink):
    """Sink for a person to watch: one run, or the runs of several cameras, by camera name.

    With several cameras, each camera's thread calls the display that `camera` returns. A single run calls this one.
    """

    def attach(self, run: RunHandle, frames: int | None, camera: str = "") -> None:
        """Attach the run of a camera, which is about to begin; `frames`: number of its frames, None if unknown."""

    @abstractmethod
    def write(self, event: Event, camera: str = "") -> None:
        """Show the next event of a camera."""

    def end(self, camera: str) -> None:
        """Mark the run of a camera as ended, with its outputs closed."""

    @abstractmethod
    def show_message(self, message: str) -> None:
        """Show a message at once. Safe in a signal handler."""

    def show_note(self, text: str) -> None:
        """Show a note about no camera in particular. Thread-safe."""
        logs.say(text)

    def show_failure(self, camera: str, message: str) -> None:
        """Show that a camera has failed, or cannot be watched. Thread-safe."""
        self.show_note(f"error: {camera}: {message}")

    def show_unreachable(self, camera: str, message: str) -> None:
        """Show that a camera cannot be reached yet and is retried. Thread-safe."""
        self.show_note(f"{camera}: {message}")

    def camera(self, name: str) -> Display:
        """Return the display for the run of one of several cameras."""
        return _CameraDisplay(self, name)


class _CameraDisplay(Display):
    """One camera's part of a display of several."""

    def __init__(self, display: Display, name: str) -> None:
        self._display = display
        self._name = name

    def attach(self, run: RunHandle, frames: int | None, camera: str = "") -> None:
        self._display.attach(run, frames, self._name)

    def write(self, event: Event, camera: str = "") -> None:
        self._display.write(event, self._name)

    def show_message(self, message: str) -> None:
        self._display.show_message(message)

    def close(self) -> None:
        self._display.end(self._name)
