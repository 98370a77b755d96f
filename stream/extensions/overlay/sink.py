"""Overlay: the newest answer in a text file."""

from __future__ import annotations

import os

from arr_coc.qwen.grounding import words_for
from stream.errors import OutputError, OutputFailed
from stream.events import Answer, Event
from stream.extension import SinkOpening
from stream.sinks.base import Sink
from stream.sinks.output_file import replace_file
from stream.untrusted import printable_lines


class OverlaySink(Sink):
    """Text file with the newest answer only, for programs that show it, such as OBS.

    Each answer replaces the whole file atomically, so a reader never sees a partial answer. The file is empty before
    the first answer and after the run. Raises OutputError if it cannot be written at the start, OutputFailed if a
    later write fails.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self._text: str | None = None
        if os.path.lexists(self._path) and not os.path.isfile(self._path):
            raise OutputError(f"cannot keep the overlay in {path!r}: it is not a regular file")
        if not os.access(os.path.dirname(self._path), os.W_OK):
            raise OutputError(f"cannot keep the overlay in {path!r}: its folder cannot be written; name another")

    @classmethod
    def open(cls, opening: SinkOpening) -> OverlaySink:
        """Open the sink of a run."""
        return cls(opening.path)

    def write(self, event: Event) -> None:
        if isinstance(event, Answer):
            self._show(printable_lines(words_for(event.text).strip()))
        elif self._text is None:
            self._show("")

    def close(self) -> None:
        if self._text is not None:
            self._show("")

    def _show(self, text: str) -> None:
        if text == self._text:
            return
        new = f"{self._path}.{os.getpid()}.new"
        try:
            replace_file(self._path, new, text)
        except OSError as error:
            raise OutputFailed(f"cannot write {self._path!r}: {error.strerror}") from error
        self._text = text
