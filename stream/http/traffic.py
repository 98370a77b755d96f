"""Bytes that a TCP connection's peer has sent and read, as the kernel counts them.

The kernel counts below TLS and below every library, so this is one way for all servers. A write to a socket says
little: buffers of some megabytes take what a peer does not read.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from contextlib import suppress
from dataclasses import dataclass

COUNTS_AT = 120
"""Place of `tcpi_bytes_acked` and `tcpi_bytes_received` in `struct tcp_info` (Linux 4.1, include/uapi/linux/tcp.h)."""

NO_LINGER = struct.pack("=ii", 1, 0)
"""`struct linger`: closing sends a reset in place of what is unread."""

COUNTS = struct.Struct("=QQ")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counts of a connection."""

    received_bytes: int | None
    """None if this kernel does not count."""
    read_bytes: int | None
    """Bytes that have reached the peer; None if this kernel does not count."""
    unread_bytes: int
    """Bytes that the kernel holds for the peer."""


def traffic_of(connection: socket.socket) -> Traffic | None:
    """Return the counts of a connected socket, None if it is closed."""
    if connection.fileno() < 0:
        return None
    try:
        (unread_bytes,) = struct.unpack("=i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
        information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, COUNTS_AT + COUNTS.size)
    except (OSError, ValueError, AttributeError):  # AttributeError: a system without TCP_INFO
        return Traffic(None, None, 0)
    if len(information) < COUNTS_AT + COUNTS.size:
        return Traffic(None, None, unread_bytes)
    read_bytes, received_bytes = COUNTS.unpack_from(information, COUNTS_AT)
    return Traffic(received_bytes, read_bytes, unread_bytes)


def discard_unread(connection: socket.socket) -> None:
    """Make the next close drop what the peer has not read: the kernel would keep it for minutes."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
