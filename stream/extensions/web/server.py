"""Server of the web page, in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute

from stream.errors import OutputError
from stream.extensions.web.access import WebAccess
from stream.extensions.web.application import PageCamera, make_application
from stream.extensions.web.camera import FRAME_BYTES_MAX, BrowserCamera
from stream.extensions.web.viewer import TEXT_BYTES_MAX
from stream.http.guard import ConnectionGuard
from stream.http.server import GuardedServer, default_limits, open_listener

if TYPE_CHECKING:
    from stream.extensions.web.compare import CompareDesk

START_LIMIT_S = 10.0
STOP_LIMIT_S = 5.0

LEAVE_LIMIT_S = 2
"""Time that viewers may take to leave."""

PING_EVERY_S = 5.0
PONG_LIMIT_S = 10.0
"""A viewer that reads nothing answers no ping either, and loses its place after the sum of both. Browsers answer by
themselves, also for a hidden page."""

log = logging.getLogger(__name__)


class WebServer:
    """Serves the page of `cameras`, by name, with the routes of other extensions, `panels`, until it is closed.

    Raises OutputError if the address cannot be bound or the certificate cannot be used.
    """

    def __init__(
        self,
        access: WebAccess,
        cameras: Mapping[str, PageCamera],
        browser_camera: BrowserCamera | None = None,
        compare: CompareDesk | None = None,
        panels: Sequence[BaseRoute] = (),
        guard: ConnectionGuard | None = None,
    ) -> None:
        self._cameras = cameras
        self._compare = compare
        self._browser_camera = browser_camera
        self._listener = open_listener("the web page", access.host, access.port)
        try:
            self._server = GuardedServer(
                make_application(access, cameras, browser_camera, compare, panels),
                self._listener,
                guard or ConnectionGuard("the web page", default_limits()),
                lifespan="off",
                ws="websockets-sansio",
                ws_per_message_deflate=False,
                ws_ping_interval=PING_EVERY_S,
                ws_ping_timeout=PONG_LIMIT_S,
                ws_max_size=FRAME_BYTES_MAX if browser_camera is not None else TEXT_BYTES_MAX,
                timeout_graceful_shutdown=LEAVE_LIMIT_S,
                ssl_certfile=access.certificate,
                ssl_keyfile=access.key,
            )
        except (ssl.SSLError, OSError, ValueError) as error:
            self._listener.close()
            raise OutputError(f"the certificate {access.certificate!r} cannot be used: {error}") from error
        self.port: int = self._listener.getsockname()[1]
        self._startup: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)
        self._thread.start()
        self._startup.result(START_LIMIT_S)

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return self._server.connections

    def close(self) -> None:
        """Disconnect the viewers and end the thread; may be called twice."""
        if self._compare is not None:
            self._compare.close()
        self._server.stop()
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
        await asyncio.sleep(0)  # the hubs know their loop from here on
        self._startup.set_result(None)
        try:
            await self._server.serve()
        finally:
            ending.set()
            await hubs
            if self._browser_camera is not None:
                self._browser_camera.close()
