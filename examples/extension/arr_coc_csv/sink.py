"""Sink: a line for each answer."""

import csv

from arr_coc_csv.section import CsvSection
from stream.events import Answer, Event
from stream.extension import SinkOpening
from stream.sinks.base import Sink


class CsvSink(Sink):
    """Writer of media time, text and tokens of each answer."""

    def __init__(self, path: str, delimiter: str) -> None:
        self._file = open(path, "w", newline="", encoding="utf-8")  # noqa: SIM115
        self._writer = csv.writer(self._file, delimiter=delimiter)
        self._writer.writerow(["seconds", "text", "tokens"])

    @classmethod
    def open(cls, opening: SinkOpening) -> "CsvSink":
        """Open the sink of a run."""
        return cls(opening.path, CsvSection.of(opening.config).delimiter)

    def write(self, event: Event) -> None:
        if isinstance(event, Answer):
            self._writer.writerow([f"{event.pts_s:.1f}", event.text, event.tokens_used])

    def close(self) -> None:
        self._file.close()
