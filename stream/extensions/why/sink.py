"""Sink that writes the reasons for tokens (`--why`), of which the newest are kept in two files."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from stream import logs
from stream.errors import OutputError, OutputFailed
from stream.events import Event, Explanation, encode_event
from stream.extension import SinkOpening
from stream.extensions.why.section import WhySection
from stream.sinks.base import Sink
from stream.sinks.output_file import OutputFile
from stream.untrusted import MIB

OLDER = ".1"
"""Suffix of the file with the older lines."""

FIRST_BYTES = b'{"type":"why"'
"""Begin of each line."""


class ExplanationSink(Sink):
    """Writer of `why` events only, of which the newest `max_mib` are kept; None for all.

    A file with half of that becomes FILE.1, in place of an earlier one, and FILE begins anew: both have whole lines.
    Raises OutputError as OutputFile does, and if FILE.1 is there and has something else in it.
    """

    def __init__(self, path: str, max_mib: float | None = None) -> None:
        self._path = os.path.realpath(path)
        self._name = path
        self._older = self._path + OLDER
        self._file = OutputFile(path)
        self._part_bytes = round(max_mib * MIB / 2) if max_mib is not None and self._file.regular else None
        self._size_bytes = 0
        self._max_mib = max_mib
        self._rotations = 0
        if self._part_bytes is not None and not _may_be_replaced(self._older):
            self._file.close()
            raise OutputError(
                f"{path + OLDER!r}, for older lines of {path!r}, has something else in it; name another file"
            )

    @classmethod
    def open(cls, opening: SinkOpening) -> ExplanationSink:
        """Open the sink of a run."""
        return cls(opening.path, WhySection.of(opening.config).max_mib)

    def write(self, event: Event) -> None:
        if not isinstance(event, Explanation):
            return
        line = encode_event(event) + "\n"
        size_bytes = len(line.encode())
        if self._part_bytes is not None:
            if not self._size_bytes:
                if not self._rotations:  # the older lines are of another run
                    with suppress(OSError):
                        os.unlink(self._older)
            elif self._size_bytes + size_bytes > self._part_bytes:
                self._rotate()
        self._file.append(line)
        self._size_bytes += size_bytes

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        try:
            os.replace(self._path, self._older)
            file = OutputFile(self._path)
        except OSError as error:
            raise OutputFailed(f"cannot write {self._name!r}: {error.strerror or error}") from error
        self._file.close()
        self._file = file
        self._size_bytes = 0
        self._rotations += 1
        if self._rotations == 2:
            text = (
                f"note: only the newest reasons are kept in {self._name!r} and {self._name + OLDER!r}, "
                f"{self._max_mib:g} MiB; why.max_mib is the limit"
            )
            logs.say(text, "warning", event="why", path=self._name, max_mib=self._max_mib)


def _may_be_replaced(path: str) -> bool:
    """Return True if nothing is at a path, or a file of reasons."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return is_file and os.read(descriptor, len(FIRST_BYTES)) in (b"", FIRST_BYTES)
    finally:
        os.close(descriptor)
