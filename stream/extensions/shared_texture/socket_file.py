"""File of a Unix socket: the check before a run, and binding it in the place of one that a dead run left."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress

from stream.config import Config
from stream.errors import ConfigError, OutputError
from stream.extensions.shared_texture.section import SharedTextureSection

LONGEST_BYTES = 103 if hasattr(socket, "SO_NOSIGPIPE") else 107
"""Longest path of a Unix socket: macOS (which has SO_NOSIGPIPE) and Linux."""


def check(config: Config) -> None:
    """Raise OutputError or ConfigError if the socket of a configuration could not be bound."""
    check_path(SharedTextureSection.of(config).socket or "")


def check_path(path: str) -> None:
    """Raise OutputError if no socket can be made at a path, ConfigError if the system has none to share memory by."""
    from stream.transport.security import REASONS, check_socket_file  # loads ZeroMQ

    if not (hasattr(socket, "AF_UNIX") and hasattr(socket, "send_fds")):
        raise ConfigError("--share-texture needs Linux or macOS; leave it out")
    folder = os.path.dirname(path) or "."
    if len(os.fsencode(path)) > LONGEST_BYTES:
        problem = errno.ENAMETOOLONG
    elif not os.path.isdir(folder):
        problem = errno.ENOENT
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = errno.EACCES
    else:
        check_socket_file(path, path)
        return
    raise OutputError(f"cannot open {path}: {REASONS[problem]}")


def bound(path: str) -> socket.socket:
    """Return a listening socket at a path, for programs of this user. Raises OutputError, ConfigError as `check_path`.

    A socket that a dead run left is replaced.
    """
    check_path(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, 0o600)  # no client connects before `listen`
        listener.listen()
    except OSError as error:
        listener.close()
        raise OutputError(f"cannot open {path}: {error.strerror}; name another path") from error
    listener.setblocking(False)
    return listener
