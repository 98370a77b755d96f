"""Folder of a recording, claimed before the run; the run's own recorder writes it."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path

from stream.config import Config
from stream.errors import OutputError
from stream.events import Event
from stream.extension import SinkOpening
from stream.extensions.record.format import claimed_folder
from stream.extensions.record.section import RecordSection
from stream.sinks.base import Sink


class RecordFolder(Sink):
    """Claim on the folder, which is removed at the end if it is empty. Raises OutputError as `claimed_folder`."""

    def __init__(self, folder: str) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(claimed_folder(folder))

    @classmethod
    def open(cls, opening: SinkOpening) -> RecordFolder:
        """Open the sink of a run."""
        return cls(RecordSection.of(opening.config).folder or "")

    def write(self, event: Event) -> None:
        pass

    def close(self) -> None:
        self._stack.close()


def check(config: Config) -> None:
    """Raise OutputError if no folder for a recording can be made."""
    folder = RecordSection.of(config).folder or ""
    if os.path.isfile(folder):
        problem = "it is a file"
    else:
        problem = os.strerror(errno.ENOENT)
    if not os.path.isdir(folder) and (os.path.lexists(folder) or not Path(folder).parent.is_dir()):
        raise OutputError(f"cannot record into {folder!r}: {problem}; name a folder, new or empty")
