"""Warnings of child processes in the log of their parent, which the user sees; what a child prints is not shown."""

from __future__ import annotations

import logging

from stream.runtime.worker_messages import WorkerNote, pack_report, unpack_report
from stream.transport import Transport

NOTES_AT_ONCE_MAX = 64
"""Warnings that are written before the reader does something else."""


class ParentLog(logging.Handler):
    """Child's end: sends warnings to the parent; one for which there is no room at once is lost."""

    def __init__(self, transport: Transport, endpoint: str) -> None:
        super().__init__(logging.WARNING)
        # any thread may warn, but the handler's lock lets one at a time to the socket
        self._sender = transport.event_sender(endpoint)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._sender.send(pack_report(WorkerNote(record.name, record.getMessage())), 0)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Leave the log of this process, and close the socket."""
        logging.getLogger().removeHandler(self)
        self._sender.close()
        super().close()


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
