"""Sink that writes a run as a Rerun recording (.rrd)."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stream.errors import OutputError, OutputFailed
from stream.events import Answer, Event, Summary
from stream.extension import SinkOpening
from stream.extensions.rerun.library import DISCONNECT_LIMIT_S, disconnect, rr
from stream.extensions.rerun.recording import APPLICATION, RunRecording, blueprint
from stream.sinks.base import Sink
from stream.sinks.output_file import OutputFile
from stream.sources.address import redacted

DISK_WAIT_S = 1.0
DISK_WAITS = 30
"""Longest single wait for the disk, and number of consecutive waits before the disk counts as stuck."""


LEAST_BYTES = 1 << 20
"""A disk with less free space than this counts as full."""


class RerunFileSink(Sink):
    """Writer of all events except pieces of text to a file, which can be read while it grows.

    A killed run leaves a file complete up to the newest answer. `close` writes the file's index, which `rerun rrd
    verify` requires. Raises OutputError and OutputFailed as OutputFile does. `name`: title of the recording.
    """

    def __init__(self, path: str, name: str) -> None:
        self._claim = OutputFile(path)
        self._name = name
        self._stream: rr.RecordingStream | None = None
        self._recording: RunRecording | None = None
        self._failed = False
        self._whole_bytes = 0

    @classmethod
    def open(cls, opening: SinkOpening) -> RerunFileSink:
        """Open the sink of a run."""
        return cls(opening.path, redacted(opening.config.source))

    def write(self, event: Event) -> None:
        with self._writing():
            if self._recording is None:
                self._claim.keep()
                stream = self._stream = rr.RecordingStream(APPLICATION)
                stream.save(self._claim.path, default_blueprint=blueprint())
                self._recording = RunRecording(stream, self._name)
            self._recording.write(event)
            if self._stream is not None and isinstance(event, (Answer, Summary)):
                self._flush(self._stream)

    def close(self) -> None:
        stream = self._stream
        recording = self._recording
        self._stream = None
        try:
            if stream is not None and recording is not None and not self._failed:
                with self._writing():
                    recording.send_figures()
                    self._flush(stream)
        finally:
            if stream is not None:
                disconnect(stream, 0.5 if self._failed else DISCONNECT_LIMIT_S)
            if self._failed and self._claim.regular:
                with suppress(OSError):
                    os.truncate(self._claim.path, self._whole_bytes)  # a partial message cannot be read
            self._claim.close()

    def _flush(self, stream: rr.RecordingStream) -> None:
        """Wait until everything is in the file."""
        for retries_left in reversed(range(DISK_WAITS)):
            try:
                stream.flush(timeout_sec=DISK_WAIT_S)
                break
            except RuntimeError as error:  # a slow disk, or a writer that has ended: the library waits in both cases
                if not retries_left or "timed out" not in str(error) or _is_full(self._claim.path):
                    raise
        self._whole_bytes = os.stat(self._claim.path).st_size

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OutputError:
            raise
        except (RuntimeError, ValueError, OSError) as error:
            self._failed = True
            raise OutputFailed(f"cannot write {self._claim.path!r}: {_reason(self._claim.path, error)}") from error


def _reason(path: str, error: Exception) -> str:
    """Return why a file could not be written; once its writer has ended, the library gives no reason."""
    if isinstance(error, OSError):  # raised by this program: the file was removed
        return error.strerror or str(error)
    if number := re.search(r"\(os error (\d+)\)", str(error)):
        return os.strerror(int(number[1]))
    if _is_full(path):
        return os.strerror(errno.ENOSPC)
    return "it takes nothing more"


def _is_full(path: str) -> bool:
    about = os.statvfs(path)
    return about.f_bavail * about.f_frsize < LEAST_BYTES
