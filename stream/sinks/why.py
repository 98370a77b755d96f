"""Why each token was chosen, for every frame that was answered about: one JSON object a line."""

from __future__ import annotations

from stream.event_forms import encode_event
from stream.events import Event, Explanation
from stream.sinks.base import Sink
from stream.sinks.output_file import OutputFile


class ExplanationSink(Sink):
    """Writes `why` events and nothing else."""

    def __init__(self, path: str) -> None:
        self._file = OutputFile(path)

    def write(self, event: Event) -> None:
        if isinstance(event, Explanation):
            self._file.append(encode_event(event) + "\n")

    def close(self) -> None:
        self._file.close()
