"""JSON lines, one event a line, each in the file as soon as it happens: events, and explanations of tokens."""

from __future__ import annotations

from msgspec.structs import replace

from stream.config import STDOUT
from stream.events import Answer, AnswerDeltaEvent, Event, Explanation, FrameReady, Summary, YesNoResult, encode_event
from stream.sinks.base import Sink
from stream.sinks.output_file import OutputFile


class StdoutLines:
    """Standard output in the place of a file. Raises ReaderGone where nobody reads it any more."""

    def append(self, text: str) -> None:
        from stream.logs import print_line

        print_line(text.removesuffix("\n"))

    def catch_up(self) -> None:
        """Nothing was written before."""

    def close(self) -> None:
        """Standard output stays open."""


class JsonlSink(Sink):
    """Writes every event but frames, their reasons and pieces of text.

    Without `timing` nothing that depends on the clock is written: two runs give the same bytes. `resume`: the file is
    that of a run which is continued, see OutputFile.
    """

    def __init__(self, path: str, *, timing: bool = True, resume: bool = False) -> None:
        self._file = StdoutLines() if path == STDOUT else OutputFile(path, resume=resume)
        self._timing = timing

    def write(self, event: Event) -> None:
        if isinstance(event, (FrameReady, AnswerDeltaEvent, Explanation)):
            return
        if isinstance(event, (Answer, YesNoResult, Summary)) and not self._timing:
            event = replace(event, timing=None)
        self._file.append(encode_event(event) + "\n")
        if isinstance(event, Summary) and event.ended == "finished":
            self._file.catch_up()

    def close(self) -> None:
        self._file.close()


class ExplanationSink(Sink):
    """Writes `why` events and nothing else."""

    def __init__(self, path: str) -> None:
        self._file = OutputFile(path)

    def write(self, event: Event) -> None:
        if isinstance(event, Explanation):
            self._file.append(encode_event(event) + "\n")

    def close(self) -> None:
        self._file.close()
