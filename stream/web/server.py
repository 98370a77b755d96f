"""Server of the web page, in a thread with an event loop of its own: uvicorn over a socket that is bound here."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from stream.errors import OutputError
from stream.web.access import WebAccess
from stream.web.application import TEXT_BYTES_MAX, make_application
from stream.web.camera import FRAME_BYTES_MAX, BrowserCamera
from stream.web.hub import Hub
from stream.web.microscope import Microscope

if TYPE_CHECKING:
    from stream.web.compare import CompareDesk

START_LIMIT_S = 10.0
STOP_LIMIT_S = 5.0

LEAVE_LIMIT_S = 2
"""Time that viewers may take to leave."""

CONNECTIONS_WAITING = 128

CONNECTIONS_MAX = 512
"""Connections open at a time; one more closes the oldest that asks for nothing. 64 viewers have some six each."""

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

SILENT_LIMIT_S = 10.0
"""A connection that asks for nothing for so long, at first or after a request, is closed: a thousand of them would take
all descriptors."""

SILENT_CHECK_S = 1.0

log = logging.getLogger(__name__)


class WebServer:
    """Serves the page from when it is made until it is closed.

    Raises OutputError where the address cannot be had or the certificate cannot be used.
    """

    def __init__(
        self,
        access: WebAccess,
        hub: Hub,
        camera: BrowserCamera | None = None,
        microscope: Microscope | None = None,
        compare: CompareDesk | None = None,
    ) -> None:
        self.hub = hub
        self._compare = compare
        self._camera = camera
        self._listener = _bound(access)
        try:
            config = uvicorn.Config(
                make_application(access, hub, camera, microscope, compare),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                http=_Connection,
                backlog=CONNECTIONS_WAITING,
                proxy_headers=False,
                ws="websockets-sansio",
                ws_per_message_deflate=False,
                ws_max_size=FRAME_BYTES_MAX if camera is not None else TEXT_BYTES_MAX,
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
        self._begun: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)
        self._thread.start()
        self._begun.result(START_LIMIT_S)

    def close(self) -> None:
        """Let the viewers go and end the thread; may be called twice."""
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
            if not self._begun.done():
                self._begun.set_exception(OutputError(f"cannot serve the web page: {error}"))

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_note_error)
        ending = asyncio.Event()
        telling = asyncio.create_task(self.hub.run(ending))
        closing = asyncio.create_task(self._close_silent(ending))
        await asyncio.sleep(0)  # the hub knows its loop from here on
        self._begun.set_result(None)
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()  # a browser keeps connections open that it does not use
            ending.set()
            await telling
            await closing
            if self._camera is not None:
                self._camera.close()

    async def _close_silent(self, ending: asyncio.Event) -> None:
        """Close connections that never ask for anything, until `ending` is set."""
        since_s: dict[tuple[asyncio.Transport, object], float] = {}
        while not ending.is_set():
            now_s = asyncio.get_running_loop().time()
            silent = [(one.transport, one.cycle) for one in _silent(self._server.server_state.connections)]
            since_s = {request: since_s.get(request, now_s) for request in silent}
            for (transport, _), at_s in since_s.items():
                if now_s - at_s >= SILENT_LIMIT_S:
                    transport.abort()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ending.wait(), SILENT_CHECK_S)


class _Connection(H11Protocol):
    """Connection that makes room for itself if there are too many."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.made_s = asyncio.get_running_loop().time()
        if len(self.connections) > CONNECTIONS_MAX:
            min(_silent(self.connections), key=lambda one: getattr(one, "made_s", 0.0)).transport.abort()


def _note_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop. Without descriptors it accepts nothing for a second, and tries each time as often
    as connections may wait: the log counts such messages."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in EXHAUSTED:
        log.warning("the web page accepts no connections for now: %s", error.strerror)
    else:
        loop.default_exception_handler(context)


def _silent(connections: Iterable[object]) -> list[H11Protocol]:
    """Return the connections on which no request is under way."""
    return [
        one
        for one in connections
        if isinstance(one, H11Protocol) and (one.cycle is None or one.cycle.response_complete)
    ]


def _bound(access: WebAccess) -> socket.socket:
    """Return a listening socket at the page's address. Raises OutputError where that cannot be had."""
    where = f"{access.host}:{access.port}"
    try:
        family = socket.getaddrinfo(access.host, access.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((access.host, access.port), family=family, backlog=CONNECTIONS_WAITING)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OutputError(f"cannot serve the web page at {where}: the port is in use; name another one") from error
        reason = error.strerror or (os.strerror(error.errno) if error.errno else str(error))
        raise OutputError(f"cannot serve the web page at {where}: {reason}; name another HOST:PORT") from error
    listener.setblocking(False)
    return listener
