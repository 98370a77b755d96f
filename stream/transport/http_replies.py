"""Replies of HTTP servers with limits of bytes and time: a server may send without end, or a byte per second.

The standard library reads them, because cameras send headers that stricter libraries refuse: names with a space, a
length that is empty or too large.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

from stream.untrusted import MIB

REPLY_BYTES_MAX = 1 * MIB
"""Size limit of a reply that is read as a whole."""


def until(chunks: Iterable[bytes], deadline_s: float) -> Iterator[bytes]:
    """Yield the chunks of a reply as they arrive. Raises TimeoutError after `deadline_s` of `time.monotonic`."""
    for chunk in chunks:
        if time.monotonic() > deadline_s:
            raise TimeoutError("no end of the reply in time")
        yield chunk


def start_of(chunks: Iterable[bytes], bytes_max: int = REPLY_BYTES_MAX) -> bytes:
    """Return the first `bytes_max` bytes of a reply, and read no more of it."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) >= bytes_max:
            break
    return bytes(data[:bytes_max])


class TimedResponse(http.client.HTTPResponse):
    """Reply that applies the socket's time limit to all of its reads together; raises TimeoutError after it."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_TimedReader(sock, self.fp.detach()))


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, reader: io.RawIOBase) -> None:
        self._socket = sock
        self._reader = reader
        limit_s = sock.gettimeout()
        if limit_s is None:
            self._deadline_s = None
        else:
            self._deadline_s = time.monotonic() + limit_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline_s is not None:
            left_s = self._deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("no end of the reply in time")
            self._socket.settimeout(left_s)
        return self._reader.readinto(buffer)

    def close(self) -> None:
        self._reader.close()
        super().close()


class TimedConnection(http.client.HTTPConnection):
    """Connection whose `timeout` also limits each reply as a whole."""

    response_class = TimedResponse


class TimedTlsConnection(http.client.HTTPSConnection, TimedConnection):
    """`TimedConnection` over TLS."""


def timed_connection(server: tuple[str, int], limit_s: float, tls: ssl.SSLContext | None = None) -> TimedConnection:
    """Return a connection to the host and port of a server, over `tls` if that is given; its first request makes it."""
    if tls is None:
        return TimedConnection(*server, timeout=limit_s)
    return TimedTlsConnection(*server, timeout=limit_s, context=tls)


class _TimedHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(TimedConnection, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(TimedTlsConnection, request)


def timed_opener(*handlers: type[urllib.request.BaseHandler]) -> urllib.request.OpenerDirector:
    """Return an opener like `build_opener`'s, whose `timeout` also limits each reply as a whole."""
    return urllib.request.build_opener(_TimedHandler, *handlers)
