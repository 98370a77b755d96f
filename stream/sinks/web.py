"""Web page of a run, of one run after another, or of several at once, and the sink that shows a run in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from stream import logs
from stream.config import Config, OutputConfig
from stream.errors import ConfigError
from stream.events import Event, Notice
from stream.monitor.health import RunMonitor
from stream.monitor.schema import StatusMessage
from stream.sinks.base import Sink
from stream.web.access import WebAccess
from stream.web.application import PageCamera
from stream.web.camera import BrowserCamera
from stream.web.hub import Hub, HubOptions
from stream.web.relay import PictureRelay
from stream.web.server import WebServer

if TYPE_CHECKING:
    from stream.web.compare import CompareDesk
    from stream.web.sources import SourceChooser


CAMERAS_MAX = 256
"""Cameras of a page: a picture carries the number of its camera in one byte."""


class WebPage:
    """The page at `output.web` with its viewers, for one run or, with a `chooser`, one after another; with a desk also
    the page to `compare` answers. `names` are those of several runs at once.

    Raises OutputError where the address cannot be had, ConfigError where a token or a library is missing, and for more
    cameras than a page has room for.
    """

    def __init__(
        self,
        output: OutputConfig,
        names: Sequence[str] = ("",),
        chooser: SourceChooser | None = None,
        compare: CompareDesk | None = None,
    ) -> None:
        access = WebAccess.of(output)
        if len(names) > CAMERAS_MAX:
            raise ConfigError(f"a page shows {CAMERAS_MAX} cameras at most, not {len(names)}; leave --web out")
        browser_camera = None if output.web_camera is None else BrowserCamera(output.web_camera)
        self.cameras = {
            name: PageCamera(
                Hub(
                    HubOptions(
                        output.web_rate,
                        output.web_width,
                        access.control,
                        compare=compare is not None,
                        name=name,
                        cameras=tuple(names),
                    ),
                    chooser=chooser,
                )
            )
            for name in names
        }
        self._server = WebServer(access, self.cameras, browser_camera, compare)
        self.address = access.address(self._server.port)

    @property
    def camera(self) -> PageCamera:
        """The first camera, which is the only one unless there are `names`."""
        return next(iter(self.cameras.values()))

    def tell_address(self) -> None:
        """Print where the page is."""
        logs.say(f"web page at {self.address}", event="web", address=self.address)

    def unreachable(self, name: str, reason: str) -> None:
        """The source of a camera cannot be opened yet."""
        self.cameras[name].hub.unreachable(reason)

    def failed(self, name: str, reason: str) -> None:
        """A camera could not begin, or has ended without a summary."""
        self.cameras[name].hub.fail(reason)

    def close(self) -> None:
        """Let the viewers go."""
        self._server.close()


class WebSink(Sink):
    """Shows a run in a page: as `camera` of one that others made, or in one at `config.output.web` that is closed with
    the sink.

    `monitor` must have taken each event before this sink does. Raises as `WebPage`.
    """

    def __init__(self, config: Config, monitor: RunMonitor, camera: PageCamera | None = None) -> None:
        self._monitor = monitor
        self._status: StatusMessage | None = None
        self._relays: list[PictureRelay] = []
        self._own = WebPage(config.output) if camera is None else None
        self._camera: PageCamera = camera or self._own.camera  # type: ignore[union-attr]
        self._hub = self._camera.hub
        browser_camera = config.output.web_camera is not None
        self._hub.begin(monitor, until=config.answer.until.question, browser_camera=browser_camera)
        self._told_on: TextIO | None = None
        self._tell_address()

    def write(self, event: Event) -> None:
        self._tell_address()
        run = self._monitor.run
        if not self._relays and run is not None:
            for endpoint, viewers in (
                (run.picture_endpoints.page, self._hub.pictures),
                (run.picture_endpoints.microscope, self._camera.microscope),
            ):
                if endpoint is not None:
                    self._relays.append(PictureRelay(endpoint, viewers.show))
                    viewers.attach(self._relays[-1])
        status = self._monitor.status()
        if status != self._status and not isinstance(event, Notice):
            self._status = status
            self._hub.publish_status()
        self._hub.publish(event)

    def _tell_address(self) -> None:
        """Tell where its own page is, again where a live view has taken the place of what was printed before."""
        if self._own is not None and self._told_on is not sys.stderr:
            self._told_on = sys.stderr
            self._own.tell_address()

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
        self._camera.microscope.attach(None)
        while self._relays:
            self._relays.pop().close()
        self._hub.finish()
