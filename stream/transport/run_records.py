"""Records of the runs of this user that go on, so that a later run can tidy up after one that was killed.

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
from collections.abc import Callable, Iterator

FOLDER = "arr-coc-stream"

SUFFIX = ".run"

RECORD_MAX_BYTES = 8192
"""A path is at most 4096 bytes long."""

log = logging.getLogger(__name__)


def state_folders() -> list[str]:
    """Where records may lie, the first one that can be used: $XDG_RUNTIME_DIR, $XDG_STATE_HOME, or ~/.local/state."""
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
        tidy(os.read(held, RECORD_MAX_BYTES))
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
