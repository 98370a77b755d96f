"""Server of ASGI applications over a bound socket: uvicorn, with a guard of its connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from stream.errors import OutputError
from stream.http.guard import Awaited, ConnectionGuard, ConnectionProgress, GuardLimits, peer_of
from stream.http.traffic import discard_unread, traffic_of

CONNECTIONS_WAITING = 128

SEND_BUFFER_BYTES = 256 * 1024
"""What the kernel holds for a peer that does not read; by itself it would take some megabytes for each. One that is
100 ms away still gets 20 Mbit/s."""

CONNECTIONS_MAX = 512
"""Connections open at a time, at most half of the descriptors. 64 viewers have some six each."""

OF_A_PEER = 3 / 4
"""Share of the connections that one address may have: 64 viewers of a machine or behind a proxy, and never all."""

ACCEPT_RETRY_S = 1.0
"""Wait before another connection is accepted, after one could not be for lack of descriptors or memory."""

log = logging.getLogger(__name__)


def default_limits() -> GuardLimits:
    """Return the limits of a server in this process."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = CONNECTIONS_MAX
    if descriptors != resource.RLIM_INFINITY:
        connections = min(CONNECTIONS_MAX, descriptors // 2)
    return GuardLimits(connections, max(1, int(OF_A_PEER * connections)))


class GuardedServer:
    """Serves an ASGI application to the connections of a listening socket.

    Args:
        application: the application.
        listener: socket that `open_listener` returned; the caller closes it.
        guard: guard of the connections, which has the server's name.
        options: further options of uvicorn.Config.

    Raises:
        OSError, ValueError: a certificate cannot be used.
    """

    def __init__(
        self,
        application: Callable[..., Awaitable[None]],
        listener: socket.socket,
        guard: ConnectionGuard,
        **options: Any,
    ) -> None:
        self.guard = guard
        self._listener = listener
        config = uvicorn.Config(
            application,
            http="h11",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            **options,
        )
        config.load()
        self._server = uvicorn.Server(config)

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._server.server_state.connections)

    def stop(self) -> None:
        """Make `serve` end; from any thread."""
        self._server.should_exit = True

    async def serve(self) -> None:
        """Serve until `stop` is called, or by a signal if this is the main thread."""
        tasks = [asyncio.create_task(self._accept()), asyncio.create_task(self._close_overdue())]
        try:
            await self._server.serve(sockets=[])
        finally:
            for task in tasks:
                task.cancel()
            for connection in self.guard.connections:
                connection.abort()  # a browser keeps connections open that it does not use

    async def _close_overdue(self) -> None:
        while True:
            await asyncio.sleep(self.guard.limits.check_s)
            self.guard.close_overdue()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client_socket, address = await loop.sock_accept(self._listener)
            except OSError as error:
                log.warning("%s accepts no connections for now: %s", self.guard.name, error.strerror)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            connection = _Connection(client_socket, peer_of(address[0]))
            if self.guard.admit(connection):
                connection.opening = loop.create_task(self._open(connection))
            else:
                client_socket.close()
            await asyncio.sleep(0)  # closed connections give their descriptors back

    async def _open(self, connection: _Connection) -> None:
        """Serve an accepted connection, after its TLS handshake if there is one."""
        config = self._server.config
        state = self._server.server_state
        with suppress(OSError):  # it left, or speaks no TLS
            connection.transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: H11Protocol(config, state, self._server.lifespan.state), connection.socket, ssl=config.ssl
            )


class _Connection:
    """A connection of uvicorn, as the guard sees it."""

    def __init__(self, client_socket: socket.socket, peer: str) -> None:
        self.socket = client_socket
        self.peer = peer
        self.opening: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def progress(self) -> ConnectionProgress | None:
        """Return what the server waits for."""
        traffic = traffic_of(self.socket)
        if traffic is None:
            return None
        if self.transport is None:
            return ConnectionProgress(Awaited.REQUEST)
        protocol = self.transport.get_protocol()
        if isinstance(protocol, H11Protocol):
            exchange = protocol.cycle
        else:
            exchange = None
        unread_bytes = traffic.unread_bytes + self.transport.get_write_buffer_size()
        if unread_bytes or self.transport.is_closing():
            return ConnectionProgress(Awaited.READING, exchange, traffic.read_bytes, unread_bytes)
        if not isinstance(protocol, H11Protocol):
            # A WebSocket: its pings find out whether its peer is there, until the server has sent a close.
            is_closing = getattr(protocol, "close_sent", False)
            return ConnectionProgress(Awaited.REQUEST if is_closing else Awaited.NOTHING, protocol)
        if exchange is None or exchange.response_complete:
            return ConnectionProgress(
                Awaited.REQUEST, exchange
            )  # what comes of a body that the application left does not count
        if protocol.conn.their_state is h11.SEND_BODY:
            # nothing is awaited while the application has not yet taken what came, nor before it wants a body
            is_ours = protocol.flow.read_paused or protocol.conn.they_are_waiting_for_100_continue
            return ConnectionProgress(Awaited.NOTHING if is_ours else Awaited.BODY, exchange, traffic.received_bytes)
        return ConnectionProgress(Awaited.NOTHING, exchange)

    def abort(self) -> None:
        """Close the connection at once."""
        discard_unread(self.socket)
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


def open_listener(name: str, host: str, port: int) -> socket.socket:
    """Return a listening socket at an address. Raises OutputError, naming the server, if that cannot be bound."""
    address = f"{host}:{port}"
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=CONNECTIONS_WAITING)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # accepted sockets inherit it
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OutputError(f"cannot serve {name} at {address}: the port is in use; name another one") from error
        reason = error.strerror or (os.strerror(error.errno) if error.errno else str(error))
        raise OutputError(f"cannot serve {name} at {address}: {reason}; name another HOST:PORT") from error
    listener.setblocking(False)
    return listener
