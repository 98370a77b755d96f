"""Web page of one run, of consecutive runs, or of several cameras, and the sink that shows a run in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from starlette.routing import BaseRoute

from stream import logs
from stream.config import Config
from stream.errors import ConfigError
from stream.events import Event, Notice
from stream.extension import SharedOpening, SinkOpening
from stream.extension.registry import parts_of
from stream.extensions.web.access import WebAccess
from stream.extensions.web.application import PageCamera
from stream.extensions.web.camera import BrowserCamera
from stream.extensions.web.hub import Hub, HubOptions
from stream.extensions.web.relay import PictureRelay
from stream.extensions.web.section import WebSection
from stream.extensions.web.server import WebServer
from stream.monitor.health import RunMonitor
from stream.monitor.schema import StatusMessage
from stream.sinks.base import SharedSink, Sink

if TYPE_CHECKING:
    from stream.extensions.web.compare import CompareDesk
    from stream.extensions.web.sources import SourceChooser


CAMERAS_MAX = 256
"""Limit of a page's cameras: a picture carries the number of its camera in one byte."""


def panels_of(configs: Sequence[Config]) -> list[BaseRoute]:
    """Return the routes of the panels that other extensions have for these runs."""
    return [route for routes in parts_of("page_panel", configs) for route in routes]


class WebPage:
    """Page at `web.address` with its viewers, for one run or, with a `chooser`, consecutive runs; with `compare`, also
    the page that compares answers. `names`: names of several simultaneous runs; `configs`: their
    configurations, if there are several. `demo`: its first page has the others side by side.

    Raises OutputError if the address is not available, ConfigError if a token or a library is missing, or for more than
    CAMERAS_MAX cameras.
    """

    def __init__(
        self,
        config: Config,
        names: Sequence[str] = ("",),
        chooser: SourceChooser | None = None,
        compare: CompareDesk | None = None,
        configs: Sequence[Config] = (),
        *,
        demo: bool = False,
    ) -> None:
        section = WebSection.of(config)
        access = replace(WebAccess.of(config), demo=demo)
        if len(names) > CAMERAS_MAX:
            raise ConfigError(f"a page shows {CAMERAS_MAX} cameras at most, not {len(names)}; leave --web out")
        if section.camera is None:
            browser_camera = None
        else:
            browser_camera = BrowserCamera(section.camera)
        panels = panels_of(configs or [config])
        self.cameras = {
            name: PageCamera(
                Hub(
                    HubOptions(
                        section.rate,
                        section.width,
                        access.control,
                        compare=compare is not None,
                        past=bool(panels),
                        name=name,
                        cameras=tuple(names),
                    ),
                    chooser=chooser,
                )
            )
            for name in names
        }
        self._server = WebServer(access, self.cameras, browser_camera, compare, panels)
        self.address = access.address(self._server.port)

    @property
    def camera(self) -> PageCamera:
        """The first camera, the only one without `names`."""
        return next(iter(self.cameras.values()))

    def print_address(self) -> None:
        """Print the page's address."""
        logs.say(f"web page at {self.address}", event="web", address=self.address)

    def unreachable(self, name: str, reason: str) -> None:
        """Show that the source of a camera cannot be opened yet."""
        self.cameras[name].hub.unreachable(reason)

    def failed(self, name: str, reason: str) -> None:
        """Show that a camera could not start, or has ended without a summary."""
        self.cameras[name].hub.fail(reason)

    def close(self) -> None:
        """Stop the server and disconnect the viewers."""
        self._server.close()


class WebSink(Sink):
    """Sink that shows a run in a page: as `camera` of an existing page, or in a page at `web.address` that is
    closed with the sink.

    `monitor` must receive each event before this sink. Raises as `WebPage`.
    """

    def __init__(self, config: Config, monitor: RunMonitor, camera: PageCamera | None = None) -> None:
        self._monitor = monitor
        self._status: StatusMessage | None = None
        self._relays: list[PictureRelay] = []
        self._page = WebPage(config) if camera is None else None
        self._camera: PageCamera = camera or self._page.camera  # type: ignore[union-attr]
        self._hub = self._camera.hub
        browser_camera = WebSection.of(config).camera is not None
        self._hub.begin(
            monitor,
            watches=config.watch,
            browser_camera=browser_camera,
            clips=config.value("clips.folder"),
            zones=config.zones,
            file=config.file,
        )
        self._address_printed_on: TextIO | None = None
        self._print_address()

    @classmethod
    def open(cls, opening: SinkOpening) -> WebSink:
        """Open the sink of a run."""
        return cls(opening.config, opening.monitor)

    def write(self, event: Event) -> None:
        self._print_address()
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

    def _print_address(self) -> None:
        """Print the page's address, and again after a live view has replaced stderr."""
        if self._page is not None and self._address_printed_on is not sys.stderr:
            self._address_printed_on = sys.stderr
            self._page.print_address()

    def close(self) -> None:
        if self._page is not None:
            self._page.close()
        self._camera.microscope.attach(None)
        while self._relays:
            self._relays.pop().close()
        self._hub.finish()


class SharedCamerasPage(SharedSink):
    """Page of several cameras, at the address of the first that names one. Raises as `WebPage`."""

    def __init__(self, opening: SharedOpening) -> None:
        configs = list(opening.configs.values())
        paged = next(config for config in configs if WebSection.of(config).address is not None)
        names = dict.fromkeys([*opening.configs, *opening.refused])
        self._page = WebPage(paged, list(names), configs=configs)
        for name, reason in opening.refused.items():
            self._page.failed(name, reason)
        self._page.print_address()

    def part(self, camera: str, config: Config, monitor: RunMonitor) -> Sink:
        """Return the sink that shows a camera's run."""
        return WebSink(config, monitor, self._page.cameras[camera])

    def unreachable(self, camera: str, reason: str) -> None:
        """Show that the source of a camera cannot be opened yet."""
        self._page.unreachable(camera, reason)

    def failed(self, camera: str, reason: str) -> None:
        """Show that a camera could not start, or has ended without a summary."""
        self._page.failed(camera, reason)

    def close(self) -> None:
        self._page.close()
