"""Where the sockets between processes of one machine lie."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stream.errors import TransportError

IPC_PATH_MAX_BYTES = 107
"""A Unix socket's path may be this long on Linux (sun_path, less the final zero)."""


LONGEST_NAME = "reports"
"""Of the sockets that lie there."""


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """A directory that only this user can enter (0700), for ipc sockets; gone at the end.

    Raises TransportError where the system's temporary directory has too long a name for a Unix socket.
    """
    path = Path(tempfile.mkdtemp(prefix="arr-coc-"))
    try:
        if len(os.fsencode(ipc_endpoint(path, LONGEST_NAME))) - len("ipc://") > IPC_PATH_MAX_BYTES:
            raise TransportError(f"{path} is too long for a Unix socket; set TMPDIR to a shorter path")
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def ipc_endpoint(directory: Path, name: str = "answer") -> str:
    """The address of a socket in `directory`: the answer stage's, or another one's."""
    return f"ipc://{directory / name}"
