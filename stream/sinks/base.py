"""What every sink is: something that takes a run's events, in order, and is closed at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod

from stream.events import Event


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
