"""Web page of a run, or of one run after another, and the sink that shows a run in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from stream import logs
from stream.config import Config, OutputConfig
from stream.events import Event, Notice
from stream.monitor.health import RunMonitor
from stream.monitor.schema import StatusMessage
from stream.protocol.pictures import PictureEndpoints
from stream.sinks.base import Sink
from stream.web.access import WebAccess
from stream.web.camera import BrowserCamera
from stream.web.hub import Hub, HubOptions
from stream.web.microscope import Microscope
from stream.web.relay import PictureRelay
from stream.web.server import WebServer

if TYPE_CHECKING:
    from stream.web.compare import CompareDesk
    from stream.web.sources import SourceChooser


class WebPage:
    """The page at `output.web` with its viewers, for one run or, with a `chooser`, one after another; with a desk also
    the page to `compare` answers.

    Raises OutputError where the address cannot be had, ConfigError where a token or a library is missing.
    """

    def __init__(
        self, output: OutputConfig, chooser: SourceChooser | None = None, compare: CompareDesk | None = None
    ) -> None:
        access = WebAccess.of(output)
        camera = None if output.web_camera is None else BrowserCamera(output.web_camera)
        options = HubOptions(output.web_rate, output.web_width, access.control, compare=compare is not None)
        self.hub = Hub(options, chooser=chooser)
        self.microscope = Microscope()
        self._server = WebServer(access, self.hub, camera, self.microscope, compare)
        self.address = access.address(self._server.port)

    def close(self) -> None:
        """Let the viewers go."""
        self._server.close()


class WebSink(Sink):
    """Shows a run in a page: in `page`, or in one of its own at `config.output.web`, which is closed with it.

    `monitor` must have taken each event before this sink does. Raises as `WebPage`.
    """

    def __init__(self, config: Config, monitor: RunMonitor, page: WebPage | None = None) -> None:
        self._monitor = monitor
        self._status: StatusMessage | None = None
        self._relays: list[PictureRelay] = []
        self._own = WebPage(config.output) if page is None else None
        self._page: WebPage = page or self._own  # type: ignore[assignment]
        self._hub = self._page.hub
        self._hub.begin(monitor, until=config.answer.until.question, camera=config.output.web_camera is not None)
        self._told_on: TextIO | None = None
        self._tell_address()

    @property
    def address(self) -> str:
        """Address of the page."""
        return self._page.address

    def write(self, event: Event) -> None:
        self._tell_address()
        run = self._monitor.run
        if not self._relays and run is not None:
            self._attach(run.picture_endpoints)
        status = self._monitor.status()
        if status != self._status and not isinstance(event, Notice):
            self._status = status
            self._hub.publish_status()
        self._hub.publish(event)

    def _attach(self, endpoints: PictureEndpoints) -> None:
        """Ask the run for pictures from here on."""
        for endpoint, viewers in ((endpoints.page, self._hub), (endpoints.microscope, self._page.microscope)):
            if endpoint is not None:
                self._relays.append(PictureRelay(endpoint, viewers.show))
                viewers.attach(self._relays[-1])

    def _tell_address(self) -> None:
        """Tell where its own page is, again where a live view has taken the place of what was printed before."""
        if self._own is not None and self._told_on is not sys.stderr:
            self._told_on = sys.stderr
            logs.say(f"web page at {self._own.address}", event="web", address=self._own.address)

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
        self._page.microscope.attach(None)
        while self._relays:
            self._relays.pop().close()
        self._hub.finish()
