"""Warnings of child processes in the log of their parent, which the user sees; what a child prints is not shown."""

from __future__ import annotations

import logging
from contextlib import closing

from stream.runtime.worker_messages import WorkerNote, pack_report, unpack_report
from stream.transport import Transport

SEND_MS = 50
"""Longest single wait for the parent to take a report."""

NOTES_AT_ONCE_MAX = 64
"""Warnings that are written before the reader does something else."""


class ParentLog(logging.Handler):
    """Child's end: sends warnings to the parent; one that the parent does not take at once is lost."""

    def __init__(self, transport: Transport, endpoint: str) -> None:
        super().__init__(logging.WARNING)
        self._transport = transport
        self._endpoint = endpoint

    def emit(self, record: logging.LogRecord) -> None:
        # any thread may warn, so each warning has its own socket
        with closing(self._transport.event_sender(self._endpoint)) as sender:
            sender.send(pack_report(WorkerNote(record.name, record.getMessage())), SEND_MS)


class ChildLog:
    """Parent's end for a child that reports nothing else; not for two threads at once."""

    def __init__(self, endpoint: str) -> None:
        self._transport = Transport()
        self._notes = self._transport.event_receiver(endpoint)

    def write(self) -> None:
        """Write the warnings that have arrived to the log of this process."""
        for _ in range(NOTES_AT_ONCE_MAX):
            data = self._notes.receive(0)
            if data is None:
                return
            report = unpack_report(data)
            if isinstance(report, WorkerNote):
                write_note(report)

    def close(self) -> None:
        """Write the last warnings, and close the socket."""
        self.write()
        self._notes.close()
        self._transport.close()


def write_note(note: WorkerNote) -> None:
    """Write a warning of a child to the log of this process."""
    logging.getLogger(note.logger).warning("%s", note.message)
