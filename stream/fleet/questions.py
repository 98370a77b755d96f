"""Questions to cameras: `NAME: question` to one, any other line to all."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stream.display.input import PendingQuestions


class FleetQuestions:
    """Passes a typed line on to the camera that it names, or to all of them. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cameras: dict[str, PendingQuestions] = {}

    def add(self, name: str, questions: PendingQuestions) -> None:
        """A camera can be asked from here on."""
        with self._lock:
            self._cameras[name] = questions

    def remove(self, name: str) -> None:
        """A camera has ended."""
        with self._lock:
            self._cameras.pop(name, None)

    def put(self, line: str, refuse: Callable[[str], None]) -> None:
        """Ask what was typed; `refuse` gets a line where it cannot be asked."""
        name, colon, rest = line.partition(":")
        with self._lock:
            cameras = dict(self._cameras)
        if colon and name.strip() in cameras:
            cameras[name.strip()].put(rest, refuse)
            return
        if not cameras:
            refuse("not asked: no camera runs")
            return
        refused: list[str] = []
        for questions in cameras.values():
            questions.put(line, refused.append)
        for reason in dict.fromkeys(refused):
            refuse(reason)
