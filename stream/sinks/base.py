"""Base of every sink: it takes the events of a run, in order, and is closed at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from stream import logs
from stream.events import Event

if TYPE_CHECKING:
    from stream.monitor.health import RunHandle


def program_version() -> str:
    """Version of this program, for the receivers of its events; "unknown" if it is not installed."""
    try:
        return version("arr-coc-stream")
    except PackageNotFoundError:
        return "unknown"


class Sink(ABC):
    """A place where events go. Made before the run, so that a place that cannot be written fails at once.

    One thread calls it. `close` may come at any moment, more than once, and leaves whatever was written valid.
    """

    @abstractmethod
    def write(self, event: Event) -> None:
        """Takes the next event. Raises OutputError where the place cannot be written any more."""

    @abstractmethod
    def close(self) -> None:
        """Completes what was written and lets go of the place."""


ALONE = ("",)
"""Names of the cameras of a display with one camera: it has no name, and no line names it."""


class Display(Sink):
    """The sink that a person looks at: one run, or those of several cameras, each by its name.

    The thread of each of several cameras calls the display that `camera` returns. A run that is alone calls this one.
    """

    def attach(self, run: RunHandle, frames: int | None, camera: str = "") -> None:
        """Take the run of a camera, which is about to begin; `frames`: their number, as far as it is known."""

    @abstractmethod
    def write(self, event: Event, camera: str = "") -> None:
        """Show the next event of a camera."""

    def end(self, camera: str) -> None:
        """Take note that the run of a camera has ended and its outputs are closed."""

    @abstractmethod
    def show_message(self, message: str) -> None:
        """Show a message at once. Safe in a signal handler."""

    def show_note(self, text: str) -> None:
        """Show a remark about no camera, or about several. For any thread."""
        logs.say(text)

    def show_failure(self, camera: str, message: str) -> None:
        """Show that a camera has failed, or cannot be watched. For any thread."""
        self.show_note(f"error: {camera}: {message}")

    def show_unreachable(self, camera: str, message: str) -> None:
        """Show that a camera cannot be reached yet, and is tried again. For any thread."""
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
