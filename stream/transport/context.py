"""ZeroMQ context of a process; private directories of its ipc sockets, with records of the runs that own them.

Each run keeps one record file, locked as long as its process lives, in a folder that only this user can enter. A record
without a lock belongs to a run that is gone. Without such a folder, nothing is recorded or swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from stream.control import check_descriptor_limit
from stream.errors import NoSocketFolder
from stream.transport.links import LINGER_MS, NOBLOCK, ArrivalPoller, Link, LinkObserver, ServerLink
from stream.transport.pictures import PictureReceiver, PictureSender
from stream.transport.security import ClientCurve, ServerCurve

FOLDER = "arr-coc-stream"

SUFFIX = ".run"

log = logging.getLogger(__name__)


def state_folders() -> list[str]:
    """Return the candidate folders for records, of which the first usable one is taken: in $XDG_RUNTIME_DIR,
    $XDG_STATE_HOME, and ~/.local/state."""
    bases = [os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("XDG_STATE_HOME"), os.path.expanduser("~/.local/state")]
    return [os.path.join(base, FOLDER) for base in bases if base and os.path.isabs(base)]


@contextlib.contextmanager
def keep_record(record: bytes) -> Iterator[None]:
    """Context manager in which this process holds a record, if a folder for it is usable."""
    name = f"{_host()}-{secrets.token_hex(16)}{SUFFIX}"
    with _folder_to_write() as folder:
        if folder is None:
            descriptor = None
        else:
            descriptor = _write_record(folder, name, record)
        try:
            yield
        finally:
            if folder is not None and descriptor is not None:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                os.close(descriptor)


def sweep(tidy: Callable[[bytes], None]) -> None:
    """Call `tidy` with the record of every run on this machine that is gone, and remove the record."""
    for path in state_folders():
        folder = _open_private(path)
        if folder is None:
            continue
        try:
            for name in os.listdir(folder):
                if name.startswith(f"{_host()}-") and name.endswith(SUFFIX):
                    with contextlib.suppress(OSError):
                        _sweep_one(folder, name, tidy)
        finally:
            os.close(folder)


def _sweep_one(folder: int, name: str, tidy: Callable[[bytes], None]) -> None:
    """Sweep one record. Raises OSError if its run is alive, or the file cannot be opened."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        tidy(os.read(descriptor, 8192))  # a path is at most 4096 bytes long
        os.unlink(name, dir_fd=folder)
    finally:
        os.close(descriptor)


def _write_record(folder: int, name: str, record: bytes) -> int | None:
    """Write a record and return the descriptor that holds its lock; None if it cannot be written.

    The record gets its name once it is locked, so that a sweep never sees it unlocked.
    """
    new = f".{name}"
    try:
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        log.debug("no record of this run: %s", error)
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, record)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        log.debug("no record of this run: %s", error)
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=folder)
        return None
    return descriptor


@contextlib.contextmanager
def _folder_to_write() -> Iterator[int | None]:
    """Context manager for the folder of a new record, created if it is missing; None if no folder is usable."""
    folders = (_open_private(path, make=True) for path in state_folders())
    descriptor = next((folder for folder in folders if folder is not None), None)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_private(path: str, *, make: bool = False) -> int | None:
    """Open a folder that belongs to this user and that no other user can enter or write; None if it is not so."""
    try:
        if make:
            os.makedirs(path, mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        log.debug("no records in %s: %s", path, error)
        return None
    about = os.fstat(descriptor)
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
        log.debug("no records in %s: others may enter it", path)
        os.close(descriptor)
        return None
    return descriptor


def _host() -> str:
    """Return the machine's name: several machines may share a home folder."""
    return os.uname().nodename.replace("/", "_")


LONGEST_NAME = "reports"
"""Longest name of a socket in the directory."""


PREFIX = "arr-coc-"


class SocketDirectory(msgspec.Struct, frozen=True):
    """Directory that a run has made for its sockets. `marker` is the random name of the file that marks it;
    `device` and `inode` identify the directory.

    It can be sent to another process, which can remove the directory too.
    """

    path: str
    marker: str
    device: int
    inode: int

    def __fspath__(self) -> str:
        return self.path

    @classmethod
    def make(cls) -> SocketDirectory:
        """Make a directory in the system's temporary directory that only this user can enter."""
        path = tempfile.mkdtemp(prefix=PREFIX)
        status = os.stat(path)
        directory = cls(path, f".run-{secrets.token_hex(16)}", status.st_dev, status.st_ino)
        os.close(os.open(os.path.join(path, directory.marker), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return directory

    def remove(self) -> bool:
        """Remove the directory, its marker and its sockets; return True if it is gone.

        Nothing is removed if another directory has taken its place, or if it holds anything but the marker and sockets
        of this user. Any number of processes may call this at any time.
        """
        with contextlib.suppress(FileNotFoundError):
            try:
                self._remove()
            except OSError as error:
                log.debug("%s stays: %s", self.path, error)
        return not os.path.lexists(self.path)

    def _remove(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            names = self._removable(descriptor)
            for name in sorted(names, key=lambda name: name == self.marker):  # the marker last
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        os.rmdir(self.path)

    def _removable(self, descriptor: int) -> list[str]:
        """Return the names of the directory's entries. Raises OSError if one of them is not the run's."""
        about = os.fstat(descriptor)
        if (about.st_dev, about.st_ino) != (self.device, self.inode):
            raise OSError("another directory has taken its place")
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) != 0o700:
            raise OSError("others may enter it")
        names = os.listdir(descriptor)
        if names and self.marker not in names:
            raise OSError("its marker is gone")
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                entry = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if name == self.marker:
                    expected = stat.S_ISREG
                else:
                    expected = stat.S_ISSOCK
                if not expected(entry.st_mode) or entry.st_uid != about.st_uid:
                    raise OSError(f"{name} in it is not the program's")
        return names


@contextlib.contextmanager
def private_directory() -> Iterator[SocketDirectory]:
    """Context manager for a directory of ipc sockets that only this user can enter (0700), removed at the end.

    Directories of killed runs are removed first. Raises NoSocketFolder if the system's temporary directory cannot be
    written, or has too long a name for a Unix socket.
    """
    sweep_directories()
    try:
        directory = SocketDirectory.make()
    except OSError as error:
        raise NoSocketFolder(f"no folder for sockets can be made: {error.strerror}", "set TMPDIR to another") from error
    with keep_record(msgspec.json.encode(directory)):
        try:
            # limit of a Unix socket's path on Linux (sun_path, less the final zero)
            if len(os.fsencode(ipc_endpoint(directory, LONGEST_NAME))) - len("ipc://") > 107:
                raise NoSocketFolder(f"{directory.path} is too long for a Unix socket", "set TMPDIR to a shorter path")
            yield directory
        finally:
            directory.remove()


def remove_after_parent(directory: SocketDirectory) -> None:
    """Remove the directory of a run whose main process has ended, and its record, from a child of that process."""
    directory.remove()
    sweep_directories()


def sweep_directories() -> None:
    """Remove the directories of runs that were killed, and their records."""
    sweep(_remove_recorded)


def _remove_recorded(record: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        msgspec.json.decode(record, type=SocketDirectory).remove()


def ipc_endpoint(directory: os.PathLike[str], name: str = "answer") -> str:
    """Return the address of a socket in `directory`, by default the answer stage's."""
    return f"ipc://{os.path.join(directory, name)}"


EVENT_QUEUE = 256
"""Capacity of the queue of events to the main thread; the allocate stage waits if it is full."""


class EventReceiver:
    """Main thread's end of the event bus."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, EVENT_QUEUE // 2)
        self._arrivals = ArrivalPoller(self._socket)
        self._socket.bind(endpoint)

    def receive(self, timeout_ms: int) -> bytes | None:
        """Return the next encoded event; None if none arrived within the time limit."""
        if self._arrivals.wait(timeout_ms):
            return self._socket.recv(NOBLOCK)
        return None

    def close(self) -> None:
        self._socket.close(linger=0)


class EventSender:
    """Stage's end of the event bus; belongs to the thread that made it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, EVENT_QUEUE // 2)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.connect(endpoint)

    def send(self, event: bytes, timeout_ms: int) -> bool:
        """Send an event; return False if there was no room within the time limit."""
        try:
            self._socket.send(event, NOBLOCK)
        except zmq.Again:
            return bool(self._socket.poll(timeout_ms, zmq.POLLOUT)) and self.send(event, 0)
        return True

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """Public keys of clients that may connect, as a credentials provider of ZeroMQ's authenticator."""

    keys: frozenset[bytes]

    def callback(self, domain: str, key: bytes) -> bool:
        """Return True if a key is known."""
        return key in self.keys


class Transport:
    """ZeroMQ context of one process, and factory of all of its sockets.

    Raises ConfigError if the process may open too few files, because libzmq would abort it.
    """

    def __init__(self) -> None:
        check_descriptor_limit()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._authenticator: ThreadAuthenticator | None = None

    @property
    def context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """Context for the other sockets of this package."""
        return self._context

    def require_curve(self, curve: ServerCurve) -> None:
        """Let sockets with CURVE accept only clients whose public key is in `curve.clients`."""
        if self._authenticator is None:
            self._authenticator = ThreadAuthenticator(self._context)
            self._authenticator.start()
        self._authenticator.configure_curve_callback(domain="*", credentials_provider=KnownKeys(curve.clients))

    def link(
        self,
        endpoint: str,
        *,
        bind: bool = False,
        check: Callable[[], None] | None = None,
        curve: ClientCurve | None = None,
        watched: bool = False,
        heartbeat: bool = False,
        observers: Sequence[LinkObserver] = (),
    ) -> Link:
        """Return one end of a channel; make it in the thread that uses it.

        Args:
            endpoint: address of the channel.
            bind: whether this end binds the address; otherwise it connects.
            check: as in `Link`.
            curve: keys of a client; None without encryption.
            watched: as in `Link`.
            heartbeat: as in `Link`.
            observers: as in `Link`.

        Raises:
            TransportError: the address cannot be bound, or is invalid.
        """
        return Link(
            self._context,
            endpoint,
            bind=bind,
            check=check,
            curve=curve,
            watched=watched,
            heartbeat=heartbeat,
            observers=observers,
        )

    def server_link(self, endpoint: str, curve: ServerCurve | None = None) -> ServerLink:
        """Return the server's end of a channel, for many links; make it in the thread that uses it."""
        if curve is not None:
            self.require_curve(curve)
        return ServerLink(self._context, endpoint, curve=curve)

    def event_receiver(self, endpoint: str) -> EventReceiver:
        return EventReceiver(self._context, endpoint)

    def event_sender(self, endpoint: str) -> EventSender:
        return EventSender(self._context, endpoint)

    def picture_sender(self, endpoint: str) -> PictureSender:
        """Return the frame process's end of the live pictures; make it in the thread that uses it."""
        return PictureSender(self._context, endpoint)

    def picture_receiver(self, endpoint: str) -> PictureReceiver:
        """Return the viewers' end of the live pictures; make it in the thread that uses it."""
        return PictureReceiver(self._context, endpoint)

    def close(self) -> None:
        """End the context; every socket must have been closed."""
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()
