"""Binding a socket that other programs reach: what can go wrong, in words for the user."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
from contextlib import suppress

import zmq

from stream.endpoints import PORT_MAX
from stream.errors import OutputError

PROBE_LIMIT_S = 0.5

HANDSHAKE_LIMIT_MS = 5_000
"""How long a connection may take to say who it is, before it is closed."""

BACKLOG = 1_024
"""Connections that may wait to be taken: with a short queue the system makes others wait for seconds."""

DESCRIPTORS = 65_536
"""Files and connections that this process asks to have: where somebody opens a thousand of them, there is room."""

REASONS = {
    errno.EADDRINUSE: "another program uses it; stop that one, or name another port",
    errno.EACCES: "this user may not; name a port above 1023, or another path",
    errno.EADDRNOTAVAIL: "this machine has no such address; 127.0.0.1 is always there",
    errno.ENODEV: "this machine has no such address; 127.0.0.1 is always there",
    errno.ENOENT: "there is no such folder; make it first",
    errno.ENAMETOOLONG: "the path is too long for a socket; name a shorter one",
}


def bind_output(bound: zmq.Socket[bytes], endpoint: str) -> None:
    """Binds `endpoint`. Raises OutputError where that cannot be, or would take a path from somebody else."""
    scheme, _, path = endpoint.partition("://")
    if scheme == "ipc" and not path.startswith("@"):
        _check_path(endpoint, path)
    port = endpoint.rpartition(":")[2]
    if scheme == "tcp" and port.isdigit() and int(port) > PORT_MAX:
        raise OutputError(f"cannot open {endpoint}: ports end at {PORT_MAX}")
    if scheme == "tcp":
        _make_room()
    bound.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_LIMIT_MS)
    bound.setsockopt(zmq.BACKLOG, BACKLOG)
    try:
        bound.bind(endpoint)
    except zmq.ZMQError as error:
        reason = REASONS.get(error.errno or 0, str(error.strerror))
        raise OutputError(f"cannot open {endpoint}: {reason}") from error


def _make_room() -> None:
    """Raises this process's own limit of open files, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_path(endpoint: str, path: str) -> None:
    """ZeroMQ removes whatever lies at an ipc path before it binds; so a file, and a socket in use, are refused here."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise OutputError(f"cannot open {endpoint}: there is something else at that path; name another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_LIMIT_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError:
            pass
    raise OutputError(f"cannot open {endpoint}: {REASONS[errno.EADDRINUSE]}")
