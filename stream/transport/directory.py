"""Where the sockets between processes of one machine lie."""

from __future__ import annotations

import contextlib
import fcntl
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


PREFIX = "arr-coc-"

YOUNG_NS = 10_000_000_000
"""A directory that is younger may belong to a run that has only just made it."""


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """A directory that only this user can enter (0700), for ipc sockets; gone at the end.

    Raises TransportError where the system's temporary directory has too long a name for a Unix socket.
    """
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    held = _hold(path)
    try:
        _sweep(path)
        if len(os.fsencode(ipc_endpoint(path, LONGEST_NAME))) - len("ipc://") > IPC_PATH_MAX_BYTES:
            raise TransportError(f"{path} is too long for a Unix socket; set TMPDIR to a shorter path")
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if held is not None:
            os.close(held)


def _hold(path: Path) -> int | None:
    """Locks a directory for as long as this process lives: the lock's descriptor, or None where another one has it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(own: Path) -> None:
    """Removes what runs have left behind that were killed and had no time to tidy up: nobody holds their directories.

    A directory that is about as old as `own` may only not have been locked yet.
    """
    about = own.stat()
    for path in own.parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            other = path.lstat()
            old = other.st_mtime_ns < about.st_mtime_ns - YOUNG_NS
            if other.st_uid != about.st_uid or not old or (held := _hold(path)) is None:
                continue
            shutil.rmtree(path, ignore_errors=True)
            os.close(held)


def ipc_endpoint(directory: Path, name: str = "answer") -> str:
    """The address of a socket in `directory`: the answer stage's, or another one's."""
    return f"ipc://{directory / name}"
