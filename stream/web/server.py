"""Server of the web page, in a thread with its own event loop: uvicorn over a socket that is bound here."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from stream.errors import OutputError
from stream.web.access import WebAccess
from stream.web.application import PageCamera, make_application
from stream.web.camera import FRAME_BYTES_MAX, BrowserCamera
from stream.web.viewer import TEXT_BYTES_MAX

if TYPE_CHECKING:
    from uvicorn.server import Protocols

    from stream.web.compare import CompareDesk

START_LIMIT_S = 10.0
STOP_LIMIT_S = 5.0

LEAVE_LIMIT_S = 2
"""Time that viewers may take to leave."""

CONNECTIONS_WAITING = 128

PING_EVERY_S, PONG_LIMIT_S = 5.0, 10.0
"""A viewer that reads nothing answers no ping either, and loses its place after the sum of both. Browsers answer by
themselves, also for a hidden page."""

CONNECTIONS_MAX = 512
"""Connections open at a time, at most half of the descriptors; for one more, one that asks for nothing is closed. 64
viewers have some six each."""

ROOM_CHECK_S = 0.1

ACCEPT_RETRY_S = 1.0
"""Wait before another connection is accepted, after one could not be for lack of descriptors or memory."""

SILENT_LIMIT_S = 10.0
"""Time after which a connection without a request, at first or after one, is closed: a thousand of them would take
all descriptors."""

SILENT_CHECK_S = 1.0

log = logging.getLogger(__name__)


class WebServer:
    """Serves the page of `cameras`, by name, with the past of the files `remembered`, until it is closed.

    Raises OutputError if the address cannot be bound or the certificate cannot be used.
    """

    def __init__(
        self,
        access: WebAccess,
        cameras: Mapping[str, PageCamera],
        browser_camera: BrowserCamera | None = None,
        compare: CompareDesk | None = None,
        remembered: Sequence[str] = (),
    ) -> None:
        self._cameras = cameras
        self._compare = compare
        self._browser_camera = browser_camera
        self._listener = _bound(access)
        try:
            config = uvicorn.Config(
                make_application(access, cameras, browser_camera, compare, remembered),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                http="h11",
                proxy_headers=False,
                ws="websockets-sansio",
                ws_per_message_deflate=False,
                ws_ping_interval=PING_EVERY_S,
                ws_ping_timeout=PONG_LIMIT_S,
                ws_max_size=FRAME_BYTES_MAX if browser_camera is not None else TEXT_BYTES_MAX,
                timeout_graceful_shutdown=LEAVE_LIMIT_S,
                ssl_certfile=access.certificate,
                ssl_keyfile=access.key,
            )
            config.load()
        except (ssl.SSLError, OSError, ValueError) as error:
            self._listener.close()
            raise OutputError(f"the certificate {access.certificate!r} cannot be used: {error}") from error
        self._server = uvicorn.Server(config)
        self.port: int = self._listener.getsockname()[1]
        self._startup: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)
        self._thread.start()
        self._startup.result(START_LIMIT_S)

    def close(self) -> None:
        """Disconnect the viewers and end the thread; may be called twice."""
        if self._compare is not None:
            self._compare.close()
        self._server.should_exit = True
        self._thread.join(STOP_LIMIT_S)
        self._listener.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            log.warning("the web page has failed, the run goes on: %s", error, exc_info=True)
            if not self._startup.done():
                self._startup.set_exception(OutputError(f"cannot serve the web page: {error}"))

    async def _serve(self) -> None:
        ending = asyncio.Event()
        hubs = asyncio.gather(*(camera.hub.run(ending) for camera in self._cameras.values()))
        closing = asyncio.create_task(self._close_silent(ending))
        accepting = asyncio.create_task(self._accept())
        await asyncio.sleep(0)  # the hubs know their loop from here on
        self._startup.set_result(None)
        try:
            await self._server.serve(sockets=[])
        finally:
            accepting.cancel()
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()  # a browser keeps connections open that it does not use
            ending.set()
            await hubs
            await closing
            if self._browser_camera is not None:
                self._browser_camera.close()

    async def _accept(self) -> None:
        """Accept connections while there is room for them: uvicorn would take as many as come."""
        loop = asyncio.get_running_loop()
        opening: set[asyncio.Task[None]] = set()
        connections_max = min(CONNECTIONS_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        while True:
            while len(opening) + len(self._server.server_state.connections) >= connections_max:
                silent = _find_silent(self._server.server_state.connections)
                for connection in silent[:1]:
                    connection.transport.abort()
                await asyncio.sleep(0 if silent else ROOM_CHECK_S)
            try:
                client_socket, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                log.warning("the web page accepts no connections for now: %s", error.strerror)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            task = loop.create_task(self._open(client_socket))
            opening.add(task)
            task.add_done_callback(opening.discard)

    async def _open(self, client_socket: socket.socket) -> None:
        """Serve an accepted connection, after its TLS handshake if there is one."""
        config = self._server.config
        with suppress(OSError):  # it left, or speaks no TLS
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: H11Protocol(config, self._server.server_state, {}),
                client_socket,
                ssl=config.ssl,
                ssl_handshake_timeout=None if config.ssl is None else SILENT_LIMIT_S,
            )

    async def _close_silent(self, ending: asyncio.Event) -> None:
        """Close connections that never ask for anything, and those that do not end, until `ending` is set."""
        since_s: dict[tuple[asyncio.Transport, object, int], float] = {}
        while not ending.is_set():
            now_s = asyncio.get_running_loop().time()
            silent = [
                (connection.transport, getattr(connection, "cycle", None), connection.transport.get_write_buffer_size())
                for connection in _find_silent(self._server.server_state.connections)
            ]
            since_s = {key: since_s.get(key, now_s) for key in silent}
            for (transport, *_), at_s in since_s.items():
                if now_s - at_s >= SILENT_LIMIT_S:
                    transport.abort()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ending.wait(), SILENT_CHECK_S)


def _find_silent(connections: Iterable[Protocols]) -> list[Protocols]:
    """Return the connections that await a request, send the rest of one that was refused, or do not close because their
    peer reads nothing."""
    return [
        connection
        for connection in connections
        if connection.transport.is_closing()
        or (isinstance(connection, H11Protocol) and (connection.cycle is None or connection.cycle.response_complete))
    ]


def _bound(access: WebAccess) -> socket.socket:
    """Return a listening socket at the page's address. Raises OutputError if that cannot be bound."""
    address = f"{access.host}:{access.port}"
    try:
        family = socket.getaddrinfo(access.host, access.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((access.host, access.port), family=family, backlog=CONNECTIONS_WAITING)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OutputError(
                f"cannot serve the web page at {address}: the port is in use; name another one"
            ) from error
        reason = error.strerror or (os.strerror(error.errno) if error.errno else str(error))
        raise OutputError(f"cannot serve the web page at {address}: {reason}; name another HOST:PORT") from error
    listener.setblocking(False)
    return listener
