"""Questions to cameras: `NAME: question` to one, any other line to all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from stream.display.input import PendingQuestions
from stream.fleet.cameras import NAME


class FleetQuestions:
    """Passes a typed line on to the camera that it names, or to all of them. For any thread.

    `names` are those of all cameras; a camera can be asked from `add` to `remove`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
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
        """Ask what was typed; `refuse` gets a line if it cannot be asked."""
        with self._lock:
            cameras = dict(self._cameras)
        if not cameras:
            refuse("not asked: no camera runs")
            return
        name, question = self._addressed(line)
        if name in cameras:
            cameras[name].put(question, refuse)
        elif name in self._names:
            refuse(f"not asked: {name} does not run; running: {', '.join(cameras)}")
        elif name is not None:
            refuse(f"not asked: no camera is called {name!r}; there are {', '.join(self._names)}")
        else:
            reasons: list[str] = []
            for questions in cameras.values():
                questions.put(question, reasons.append)
            for reason in dict.fromkeys(reasons):
                refuse(reason)

    def _addressed(self, line: str) -> tuple[str | None, str]:
        """Return the camera that a line is for, None for all, and the question. A word of a name's letters with a colon
        and a space after it is meant as a name, also if no camera has it."""
        name, colon, rest = line.partition(":")
        name = name.strip()
        if colon and (name in self._names or (NAME.fullmatch(name) and not rest[:1].strip())):
            return name, rest
        return None, line
