"""Sink that shows the run in a web page."""

from __future__ import annotations

import sys

from stream import logs
from stream.config import Config
from stream.events import Event, Notice
from stream.monitor.health import RunMonitor
from stream.monitor.schema import StatusMessage
from stream.sinks.base import Sink
from stream.web.access import WebAccess
from stream.web.camera import BrowserCamera
from stream.web.hub import Hub, HubOptions
from stream.web.relay import PictureRelay
from stream.web.server import WebServer


class WebSink(Sink):
    """Serves the page at `config.output.web`. `monitor` must have taken each event before this sink does.

    Raises OutputError where the address cannot be had, ConfigError where a token or a library is missing.
    """

    def __init__(self, config: Config, monitor: RunMonitor) -> None:
        output = config.output
        self._monitor = monitor
        self._status: StatusMessage | None = None
        self._relay: PictureRelay | None = None
        access = WebAccess.of(output)
        camera = None if output.web_camera is None else BrowserCamera(output.web_camera)
        options = HubOptions(
            output.web_rate, output.web_width, access.control, config.answer.until.question, camera is not None
        )
        self._hub = Hub(options, monitor)
        self._server = WebServer(access, self._hub, camera)
        self.address = access.address(self._server.port)
        self._tell_address()

    def write(self, event: Event) -> None:
        if sys.stderr is not self._told_on:  # a live view has taken the place of what was printed before
            self._tell_address()
        run = self._monitor.run
        if self._relay is None and run is not None and run.picture_endpoint is not None:
            self._relay = PictureRelay(run.picture_endpoint, self._hub.show)
            self._hub.attach(self._relay)
        status = self._monitor.status()
        if status != self._status and not isinstance(event, Notice):
            self._status = status
            self._hub.publish_status()
        self._hub.publish(event)

    def _tell_address(self) -> None:
        self._told_on = sys.stderr
        logs.say(f"web page at {self.address}", event="web", address=self.address)

    def close(self) -> None:
        self._server.close()
        if self._relay is not None:
            self._relay.close()
            self._relay = None
