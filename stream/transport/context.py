"""ZeroMQ context of a process; private directories of its ipc sockets, with records of the runs that own them.

Each run keeps one file, locked for as long as its process lives, in a folder that only this user can enter. A record
that nobody holds is that of a run that is gone. Where there is no such folder, nothing is recorded and nothing swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from stream.control import check_descriptor_limit
from stream.errors import NoSocketFolder
from stream.transport.links import LINGER_MS, Link, LinkObserver, ServerLink
from stream.transport.pictures import PictureReceiver, PictureSender
from stream.transport.security import ClientCurve, ServerCurve

FOLDER = "arr-coc-stream"

SUFFIX = ".run"

log = logging.getLogger(__name__)


def state_folders() -> list[str]:
    """Return the folders for records, of which the first usable one is taken: $XDG_RUNTIME_DIR, $XDG_STATE_HOME, or
    ~/.local/state."""
    bases = [os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("XDG_STATE_HOME"), os.path.expanduser("~/.local/state")]
    return [os.path.join(base, FOLDER) for base in bases if base and os.path.isabs(base)]


@contextlib.contextmanager
def keep_record(record: bytes) -> Iterator[None]:
    """While inside, this process holds a record. Without a folder to keep it in there is none."""
    name = f"{_host()}-{secrets.token_hex(16)}{SUFFIX}"
    with _folder_to_write() as folder:
        held = None if folder is None else _written(folder, name, record)
        try:
            yield
        finally:
            if folder is not None and held is not None:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                os.close(held)


def sweep(tidy: Callable[[bytes], None]) -> None:
    """Calls `tidy` with the record of every run on this machine that is gone, and removes that record."""
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
    """Raises OSError where its run goes on, or where it is no record."""
    held = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        about = os.fstat(held)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            return
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        tidy(os.read(held, 8192))  # a path is at most 4096 bytes long
        os.unlink(name, dir_fd=folder)
    finally:
        os.close(held)


def _written(folder: int, name: str, record: bytes) -> int | None:
    """The descriptor that holds the new record's lock; None where there can be no record.

    The record gets its name once it is locked: a sweep never finds it without its lock.
    """
    new = f".{name}"
    try:
        held = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        log.debug("no record of this run: %s", error)
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(held, record)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        log.debug("no record of this run: %s", error)
        os.close(held)
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=folder)
        return None
    return held


@contextlib.contextmanager
def _folder_to_write() -> Iterator[int | None]:
    """The folder for a new record, made where there is none; None where nothing can be kept."""
    folders = state_folders()
    opened = next((found for path in folders if (found := _open_private(path, make=True)) is not None), None)
    try:
        yield opened
    finally:
        if opened is not None:
            os.close(opened)


def _open_private(path: str, *, make: bool = False) -> int | None:
    """A folder of this user that nobody else can enter or write; None where it is anything else."""
    try:
        if make:
            os.makedirs(path, mode=0o700, exist_ok=True)
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        log.debug("no records in %s: %s", path, error)
        return None
    about = os.fstat(opened)
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
        log.debug("no records in %s: others may enter it", path)
        os.close(opened)
        return None
    return opened


def _host() -> str:
    """The machine's name: a home folder may be shared by several."""
    return os.uname().nodename.replace("/", "_")


LONGEST_NAME = "reports"
"""Of the sockets that lie there."""


PREFIX = "arr-coc-"


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
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) != 0o700:
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

    What runs have left that were killed is swept up first. Raises NoSocketFolder if the system's temporary directory
    cannot be written, or has too long a name for a Unix socket.
    """
    sweep_directories()
    try:
        directory = SocketDirectory.make()
    except OSError as error:
        raise NoSocketFolder(f"no folder for sockets can be made: {error.strerror}", "set TMPDIR to another") from error
    with keep_record(msgspec.json.encode(directory)):
        try:
            # a Unix socket's path may be this long on Linux (sun_path, less the final zero)
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
    """The address of a socket in `directory`: the answer stage's, or another one's."""
    return f"ipc://{os.path.join(directory, name)}"


EVENT_QUEUE = 256
"""Events that may wait for the main thread before the allocate stage waits."""


class EventReceiver:
    """Main thread's end of the event bus."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, EVENT_QUEUE // 2)
        self._socket.bind(endpoint)

    def receive(self, timeout_ms: int) -> bytes | None:
        """Return the next encoded event, or None within the time limit."""
        if not self._socket.poll(timeout_ms):
            return None
        return self._socket.recv(zmq.NOBLOCK)

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
        """Send an event; return False if it was not taken within the time limit."""
        try:
            self._socket.send(event, zmq.NOBLOCK)
        except zmq.Again:
            return bool(self._socket.poll(timeout_ms, zmq.POLLOUT)) and self.send(event, 0)
        return True

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """Public keys of clients that may connect, as the authenticator of ZeroMQ asks for them."""

    keys: frozenset[bytes]

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a key is known."""
        return key in self.keys


class Transport:
    """ZeroMQ context of one process, which makes all of its sockets.

    Raises ConfigError if the process may open too few files: libzmq would end it.
    """

    def __init__(self) -> None:
        check_descriptor_limit()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._authenticator: ThreadAuthenticator | None = None

    @property
    def context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """For the other sockets of this package."""
        return self._context

    def require_curve(self, curve: ServerCurve) -> None:
        """Let sockets with CURVE take only clients whose public key is in `curve.clients`."""
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
        observer: LinkObserver | None = None,
    ) -> Link:
        """Return one end of the channel at `endpoint`; make it in the thread that uses it."""
        return Link(
            self._context,
            endpoint,
            bind=bind,
            check=check,
            curve=curve,
            watched=watched,
            heartbeat=heartbeat,
            observer=observer,
        )

    def server_link(self, endpoint: str, curve: ServerCurve | None = None) -> ServerLink:
        """Return the end of a channel that many links may reach; make it in the thread that uses it."""
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
