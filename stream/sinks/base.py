"""Base of every sink: it takes the events of a run, in order, and is closed at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from stream.events import Event

if TYPE_CHECKING:
    from stream.monitor.health import RunHandle


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


class Display(Sink):
    """The sink that a person looks at."""

    def attach(self, run: RunHandle, frames: int | None) -> None:
        """The run is about to begin, and will give so many frames, as far as anybody knows."""

    @abstractmethod
    def show_message(self, message: str) -> None:
        """Shows a message at once. Safe in a signal handler."""
