"""Directories for the ipc sockets between processes of one machine: made, marked and removed."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator

import msgspec

from stream.errors import TransportError
from stream.transport.run_records import keep_record, sweep

IPC_PATH_MAX_BYTES = 107
"""A Unix socket's path may be this long on Linux (sun_path, less the final zero)."""


LONGEST_NAME = "reports"
"""Of the sockets that lie there."""


PREFIX = "arr-coc-"

PRIVATE_MODE = 0o700

log = logging.getLogger(__name__)


class SocketDirectory(msgspec.Struct, frozen=True):
    """A directory that a run has made for its sockets. `marker` is the random name of the file that marks it as such;
    `device` and `inode` are those of the directory.

    It can be sent to another process, which can remove it too.
    """

    path: str
    marker: str
    device: int
    inode: int

    def __fspath__(self) -> str:
        return self.path

    @classmethod
    def make(cls) -> SocketDirectory:
        """A new one in the system's temporary directory, which only this user can enter."""
        path = tempfile.mkdtemp(prefix=PREFIX)
        made = os.stat(path)
        directory = cls(path, f".run-{secrets.token_hex(16)}", made.st_dev, made.st_ino)
        os.close(os.open(os.path.join(path, directory.marker), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return directory

    def remove(self) -> bool:
        """Removes the directory, its marker and its sockets; returns whether it is gone.

        Nothing is removed where it is not the directory that was made, or holds anything but the marker and sockets of
        this user. Any process may call this at any time, several at once too.
        """
        with contextlib.suppress(FileNotFoundError):
            try:
                self._remove()
            except OSError as error:
                log.debug("%s stays: %s", self.path, error)
        return not os.path.lexists(self.path)

    def _remove(self) -> None:
        opened = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            names = self._removable(opened)
            for name in sorted(names, key=lambda name: name == self.marker):  # the marker last
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=opened)
        finally:
            os.close(opened)
        os.rmdir(self.path)

    def _removable(self, opened: int) -> list[str]:
        """The names of all that lies in the directory. Raises OSError where something of it is not the run's."""
        about = os.fstat(opened)
        if (about.st_dev, about.st_ino) != (self.device, self.inode):
            raise OSError("another directory has taken its place")
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) != PRIVATE_MODE:
            raise OSError("others may enter it")
        names = os.listdir(opened)
        if names and self.marker not in names:
            raise OSError("its marker is gone")
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                entry = os.stat(name, dir_fd=opened, follow_symlinks=False)
                expected = stat.S_ISREG if name == self.marker else stat.S_ISSOCK
                if not expected(entry.st_mode) or entry.st_uid != about.st_uid:
                    raise OSError(f"{name} in it is not the program's")
        return names


@contextlib.contextmanager
def private_directory() -> Iterator[SocketDirectory]:
    """A directory that only this user can enter (0700), for ipc sockets; gone at the end.

    What runs have left that were killed is swept up first. Raises TransportError where the system's temporary directory
    has too long a name for a Unix socket.
    """
    sweep(_remove_recorded)
    directory = SocketDirectory.make()
    with keep_record(msgspec.json.encode(directory)):
        try:
            if len(os.fsencode(ipc_endpoint(directory, LONGEST_NAME))) - len("ipc://") > IPC_PATH_MAX_BYTES:
                raise TransportError(f"{directory.path} is too long for a Unix socket", "set TMPDIR to a shorter path")
            yield directory
        finally:
            directory.remove()


def _remove_recorded(record: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        msgspec.json.decode(record, type=SocketDirectory).remove()


def ipc_endpoint(directory: os.PathLike[str], name: str = "answer") -> str:
    """The address of a socket in `directory`: the answer stage's, or another one's."""
    return f"ipc://{os.path.join(directory, name)}"
