"""MCAP file of a run (https://mcap.dev): complete when it is closed, and readable if the disk fills before that."""

from __future__ import annotations

import os
from contextlib import suppress

import foxglove
from foxglove import Context
from foxglove.mcap import MCAPWriteOptions

from stream.config import Config
from stream.errors import OutputFailed
from stream.events import Answer, Event, Summary
from stream.extension import SinkOpening
from stream.extensions.robotics.foxglove_topics import FoxgloveTopics
from stream.extensions.robotics.mcap_records import RecordFile
from stream.extensions.robotics.pictures import EventClock
from stream.extensions.robotics.section import RoboticsSection
from stream.sinks.base import Sink
from stream.sinks.output_file import OutputFile

PART = ".part"
"""Suffix of a continued run's file until it replaces the old one."""

CHUNK_BYTES = 256 * 1024
"""Size of a chunk before compression; a killed run loses at most one, and nothing from before its last answer."""


class McapSink(Sink):
    """Writer of a run to an MCAP file at `path`, with the topics of FoxgloveTopics.

    The file is claimed at once and emptied with the first event. `resume`: it was written by a run that is now
    continued from its beginning; the new file replaces it at the end, unless the new one is smaller and the run has not
    finished. Raises OutputError if it cannot be written, and OutputFailed if a later write fails: the file then stays
    readable.
    """

    def __init__(self, path: str, config: Config, *, resume: bool = False) -> None:
        self._path = path
        if resume:
            self._file_path = f"{os.path.realpath(path)}{PART}"
        else:
            self._file_path = path
        self._config = config
        self._finished = False
        self._claim = OutputFile(path)
        self._recording: _Recording | None = None
        self._closed = False

    @classmethod
    def open(cls, opening: SinkOpening) -> McapSink:
        """Open the sink of a run."""
        return cls(opening.path, opening.config, resume=opening.resume)

    def write(self, event: Event) -> None:
        if self._recording is None:
            self._recording = _Recording(self._path, self._file_path, self._config)
        self._recording.write(event)
        self._finished = isinstance(event, Summary) and event.ended == "finished"

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._recording is not None:
                self._recording.close()
        finally:
            if self._recording is not None and self._file_path != self._path:
                # the continued run's file replaces the old one, unless it is smaller
                old = os.path.realpath(self._path)
                new = self._file_path
                with suppress(OSError):
                    if self._finished or os.path.getsize(new) >= os.path.getsize(old):
                        os.replace(new, old)
                    else:
                        os.unlink(new)
            self._claim.close()


class _Recording:
    """Open file at `place`, its writer and the topics that feed it; error messages name `path`."""

    def __init__(self, path: str, place: str, config: Config) -> None:
        self._path = path
        context = Context()
        try:
            self._file = RecordFile(place)
        except OSError as error:
            raise OutputFailed(f"cannot write {path!r}: {error.strerror}") from error
        options = MCAPWriteOptions(
            chunk_size=CHUNK_BYTES, disable_seeking=True, compression_threads=0, calculate_data_section_crc=False
        )
        self._writer = foxglove.open_mcap(self._file, context=context, writer_options=options)
        section = RoboticsSection.of(config)
        self._writer.write_metadata("arr_coc_stream", {"log_time": section.log_time})
        clock = EventClock(unix=section.log_time == "unix")
        self._topics = FoxgloveTopics(context, clock, section.frame_id, timing=config.output.timing)
        self._raise_failure()

    def write(self, event: Event) -> None:
        self._topics.write(event)
        if isinstance(event, Answer):
            self._writer.flush()
        self._raise_failure()

    def close(self) -> None:
        """Complete the file. Raises OutputFailed if the index cannot be written and no earlier write failed."""
        failed = self._file.error is not None
        with suppress(RuntimeError):  # an earlier write failed and was reported
            self._writer.close()
        self._file.close()
        if not failed:
            self._raise_failure()

    def _raise_failure(self) -> None:
        error = self._file.error
        if error is not None:
            raise OutputFailed(f"cannot write {self._path!r}: {error.strerror}") from error
