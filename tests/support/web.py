"""A web page over a run made by hand: pictures drawn on request, events on the test's signal, and a browser."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from stream.config import Config, WatchConfig, ZoneConfig
from stream.control import AddWatch, Ask, AskAside, Command, RemoveWatch
from stream.events import Event, FrameMap, QueryChanged, SideText, StandingQuestion, Started, WatchesChanged
from stream.extensions.web.access import WebAccess
from stream.extensions.web.application import PageCamera
from stream.extensions.web.camera import BrowserCamera
from stream.extensions.web.compare import CompareDesk
from stream.extensions.web.hub import Hub, HubOptions
from stream.extensions.web.microscope import Microscope
from stream.extensions.web.server import WebServer
from stream.extensions.web.sink import WebPage, panels_of
from stream.extensions.web.sources import SourceChooser
from stream.http.guard import ConnectionGuard
from stream.monitor.health import RunMonitor
from stream.protocol.inspection import InspectedFrame, InspectionRequest, TileMap
from stream.protocol.picture_files import encode_jpeg
from stream.protocol.pictures import (
    INSPECTION,
    PictureEndpoints,
    PictureRequest,
    ViewedFrame,
    level_for,
    pack_picture,
)
from stream.runtime.pictures import encode_inspection
from tests.support.events import frame, side_answer
from tests.support.network import LIMIT_S
from tests.support.runs import WatchedRun
from tests.support.sections import sections

Server = TypeVar("Server")

WIDTH, HEIGHT, ROWS, COLS = 512, 256, 8, 16

REGIONS = np.array([[0, 0, 0], [0, 0, 1], [1, 1, 2]], "<i2")
"""Two tiles at the top left, and one square of 2×2 tiles at rows 2 and 3, columns 4 and 5."""


def sampled(index: int = 0, widths: tuple[int, ...] = (1280,), grey: int = 128) -> ViewedFrame:
    """A frame with one bright tile of relevance, at (0, 1)."""
    relevance = np.zeros((ROWS, COLS), np.uint8)
    relevance[0, 1] = 255
    levels = {width: level_for(WIDTH, width) for width in widths}
    return ViewedFrame(
        frame_index=index,
        capture_ns=time.monotonic_ns(),
        media_ns=index * 100_000_000,
        tokens=len(REGIONS),
        map=FrameMap(rows=ROWS, cols=COLS, relevance=relevance.tobytes(), regions=REGIONS.tobytes()),
        images={level: np.full((HEIGHT >> level, WIDTH >> level, 3), grey, np.uint8) for level in set(levels.values())},
        levels=levels,
    )


def inspected(index: int = 0, levels: tuple[int, ...] = (0,), *, picture: str = "") -> InspectedFrame:
    """The same frame under the microscope; `picture` is the question's place for one that is no frame."""
    information = np.zeros((ROWS, COLS), np.float32)
    information[0, 1] = 0.5
    gradient = np.linspace(-0.25, 0.25, ROWS * COLS, dtype=np.float32).reshape(ROWS, COLS)
    relevance = np.zeros((ROWS, COLS), np.float32)
    relevance[0, 1] = 1.0
    return InspectedFrame(
        frame_index=index,
        capture_ns=time.monotonic_ns(),
        media_ns=index * 100_000_000,
        tokens=len(REGIONS),
        width_px=WIDTH,
        height_px=HEIGHT,
        rows=ROWS,
        cols=COLS,
        regions=REGIONS,
        overview=0,
        strategy="foveated",
        maps={
            "gradient across": TileMap("texture", gradient, -1.0, 1.0),
            "information": TileMap("scores", information, 0.0, 1.0),
            "relevance, blended": TileMap("relevance", relevance, 0.0, 1.0),
        },
        weights={"information": 0.75, "perspective": 0.25},
        images={level: np.full((HEIGHT >> level, WIDTH >> level, 3), 90, np.uint8) for level in levels},
        profile="core13",
        query=picture or "What?",
    )


class DrawnPictures:
    """Sends a picture for each request, at once."""

    def __init__(self, hub: Hub, microscope: Microscope) -> None:
        self._hub = hub
        self._microscope = microscope
        self.requests: list[tuple[int, ...]] = []
        self.inspections: list[InspectionRequest] = []
        self.silent = False

    def request(self, request: PictureRequest) -> None:
        if request.inspect is not None:
            self._inspect(request.inspect)
            return
        self.requests.append(request.widths)
        if self.silent:
            return
        pictures = sampled(len(self.requests), request.widths)
        packed = {
            level: pack_picture(pictures, level, encode_jpeg(pictures.images[level]), time.time_ns())
            for level in pictures.images
        }
        self._hub.pictures.show({width: packed[level] for width, level in pictures.levels.items()})

    def _inspect(self, request: InspectionRequest) -> None:
        self.inspections.append(request)
        if self.silent:
            return
        if request.picture is None:
            message = encode_inspection(inspected(len(self.inspections), request.levels), time.time_ns())
            self._microscope.show({INSPECTION: message})
        else:
            picture = request.picture
            words = f"{picture.width}x{picture.height}"
            message = encode_inspection(inspected(0, request.levels, picture=words))
            self._microscope.show({-picture.number: message})


class PagedRun(WatchedRun):
    """Accepts each question, and reports it; answers side questions in the pieces `replies` and the rest `missed`, with
    `ends`; not at all without pieces. Adds and removes watches, unless it `refuses` them."""

    picture_endpoints = PictureEndpoints()

    def __init__(self) -> None:
        super().__init__()
        self.page: LiveRun | None = None
        self.replies: tuple[str, ...] = ("a red ", "car")
        self.late_text = ""
        self.ends = True
        self.refuses: str | None = None

    def send(self, command: Command) -> None:
        super().send(command)
        assert self.page is not None
        match command:
            case Ask(query=query):
                self.page.emit(QueryChanged(query=query))
            case AskAside():
                for text in self.replies:
                    self.page.emit(SideText(question=command.number, text=text))
                if self.replies and self.ends:
                    self.page.emit(side_answer(command, "".join(self.replies) + self.late_text))
            case AddWatch(name=name) | RemoveWatch(name=name) if self.ends:
                present = list(self.page.hub.watches)
                if self.refuses is None:
                    present = [watch for watch in present if watch.name != name]
                    if isinstance(command, AddWatch):
                        present.append(StandingQuestion(name, command.question))
                self.page.emit(WatchesChanged(watch=name, watches=present, error=self.refuses))


class LiveRun:
    """A run that is live, in its `place` on a page."""

    def __init__(self, config: Config, place: PageCamera, source: str = "camera") -> None:
        self.run = PagedRun()
        self.run.page = self
        self.monitor = RunMonitor(config)
        self.monitor.follow(self.run)  # type: ignore[arg-type]
        self.hub, self.microscope = place.hub, place.microscope
        self.hub.begin(
            self.monitor,
            watches=config.watch,
            browser_camera=config.value("web.camera") is not None,
            zones=config.zones,
            clips=config.value("clips.folder"),
            file=config.file,
        )
        self.pictures = DrawnPictures(self.hub, self.microscope)
        self.source = source

    def go_live(self) -> None:
        """Attaches pictures and emits the first frame."""
        self.hub.pictures.attach(self.pictures)
        self.microscope.attach(self.pictures)
        self.emit(Started(source=self.source, model="fake", query="What?", backend="cpu"))
        self.emit(frame(0, 0.0))

    def emit(self, event: Event) -> None:
        self.monitor.add(event)
        self.run.statistics.add(event)
        self.hub.publish_status()
        self.hub.publish(event)


class ServedPage(LiveRun):
    """The page of a run that is live."""

    def __init__(
        self,
        *,
        rate: float = 30.0,
        chooser: SourceChooser | None = None,
        compare: CompareDesk | None = None,
        watches: tuple[WatchConfig, ...] = (),
        zones: dict[str, ZoneConfig] | None = None,
        guard: ConnectionGuard | None = None,
        file: Path | None = None,
        **values: Any,
    ) -> None:
        tables = sections(**{"web__address": "127.0.0.1:0", **values})
        self.config = config = Config(watch=watches, zones=zones or {}, **tables)
        vars(config)["file"] = file
        self.access = WebAccess.of(config)
        camera = None if config.value("web.camera") is None else BrowserCamera(config.value("web.camera"))
        panels = panels_of([config])
        options = HubOptions(
            rate, config.value("web.width"), self.access.control, compare=compare is not None, past=bool(panels)
        )
        place = PageCamera(Hub(options, chooser=chooser))
        super().__init__(config, place)
        self.server = WebServer(self.access, {"": place}, camera, compare, panels, guard)
        self.port = self.server.port
        self.go_live()

    @property
    def url(self) -> str:
        return f"{self.access.scheme}://127.0.0.1:{self.port}/"

    def close(self) -> None:
        self.server.close()


class SharedPage:
    """The page of several runs, each with a name."""

    def __init__(self, names: Sequence[str], *, remembered: Sequence[str] = (), **values: Any) -> None:
        config = Config(**sections(**{"web__address": "127.0.0.1:0", **values}))
        configs = [config.with_values({"past.file": path}) for path in remembered]
        self.page = WebPage(config, names, configs=configs)
        self.url = self.page.address.partition("?")[0]
        self.port = int(self.url.strip("/").rpartition(":")[2])
        self.cameras = {name: LiveRun(config, place, name) for name, place in self.page.cameras.items()}
        for camera in self.cameras.values():
            camera.go_live()

    def close(self) -> None:
        self.page.close()


@contextmanager
def served(**options: Any) -> Iterator[ServedPage]:
    with closing(ServedPage(**options)) as page:
        yield page


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def json(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.body)
        return fields


def ask(page: ServedPage | SharedPage, path: str = "/", body: bytes | None = None, **headers: str) -> Reply:
    """Get a path, or post a body to it."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=LIMIT_S)
    header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(connection):
        connection.request("GET" if body is None else "POST", path, body, header_fields)
        reply = connection.getresponse()
        return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())


def written(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    """Return an image as a file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def png(width: int, height: int) -> bytes:
    return written(Image.new("RGB", (width, height), (200, 30, 30)))


def closing_code(socket: ClientConnection) -> int | None:
    """The code with which the page closes the connection."""
    try:
        while True:
            socket.recv(timeout=LIMIT_S)
    except ConnectionClosed as closed:
        return None if closed.rcvd is None else closed.rcvd.code


class PageClient:
    """A viewer that is no browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.texts: list[dict[str, Any]] = []
        self.pictures: list[bytes] = []

    def send(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def take(self) -> None:
        message = self.socket.recv(timeout=LIMIT_S)
        if isinstance(message, bytes):
            self.pictures.append(message)
        else:
            self.texts.append(json.loads(message))

    def next(self, topic: str) -> dict[str, Any]:
        """The next text of a topic that has not been taken."""
        while True:
            for at, text in enumerate(self.texts):
                if text["topic"] == topic:
                    return self.texts.pop(at)
            self.take()

    def picture(self) -> bytes:
        """The next picture, confirmed."""
        while not self.pictures:
            self.take()
        self.send(ok=1)
        return self.pictures.pop(0)


@contextmanager
def viewing(page: ServedPage | SharedPage, query: str = "", **options: Any) -> Iterator[PageClient]:
    with connect(page.url.replace("http", "ws") + "live" + query, max_size=None, compression=None, **options) as socket:
        yield PageClient(socket)


BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
FLAGS = [
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
    "--host-resolver-rules=MAP other.test 127.0.0.1",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser; the test is skipped if there is none, and fails if CI should have installed one."""
    browser_path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser_path is None:
        message = "no Chromium: apt-get install --no-install-recommends chromium-headless-shell"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """A visit to the page, which must throw nothing, log only errors that match `allowed`, and ask no other host."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light", **options}
        self.context = browser.new_context(ignore_https_errors=True, **options)
        self.context.set_default_timeout(LIMIT_S * 1000)
        self.allowed = "^$"
        self.errors: list[str] = []
        self.outside: list[str] = []
        self.page = self.new_page()

    def new_page(self) -> Page:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: self._note(request.url))
        return page

    def see(self, url: str, count: int = 3) -> None:
        """Open the live page and wait until `count` pictures have been drawn."""
        self.page.goto(url)
        shown(self.page, count)

    @contextmanager
    def at(self, server: AbstractContextManager[Server]) -> Iterator[Server]:
        """A server that ends after the pages of the visit, which would log that it has gone."""
        with server as served:
            yield served
            self.context.close()

    def _note(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "https://127.0.0.1:", "ws://127.0.0.1:", "blob:", "data:")):
            self.outside.append(url)

    def close(self) -> None:
        """End the visit; nothing was wrong in the page, and nothing was requested from another host."""
        self.context.close()
        unexpected = [error for error in self.errors if not re.search(self.allowed, error)]
        assert not unexpected, unexpected
        assert not self.outside, self.outside


def text(page: Page, selector: str) -> str:
    return " ".join(page.locator(selector).inner_text().split())


def has(page: Page, selector: str, words: str) -> None:
    """Waits until an element has words that match."""
    page.locator(selector).filter(has_text=re.compile(words)).first.wait_for()


def pixel(page: Page, canvas: str, x: float, y: float) -> list[int]:
    """Red, green, blue and opacity of a place, in parts of the width and height."""
    colour: list[int] = page.evaluate(
        """([canvas, x, y]) => {
            const on = document.getElementById(canvas);
            const at = [Math.floor(x * on.width), Math.floor(y * on.height)];
            return [...on.getContext("2d").getImageData(...at, 1, 1).data];
        }""",
        [canvas, x, y],
    )
    return colour


def on_phone(visit: Visit, scheme: Literal["light", "dark"] = "dark") -> Page:
    """The page of a visit in the window of a phone."""
    visit.page.set_viewport_size({"width": 400, "height": 800})
    visit.page.emulate_media(color_scheme=scheme)
    return visit.page


def shown(page: Page, count: int = 3) -> None:
    """Waits until `count` pictures have been drawn."""
    page.wait_for_function("(count) => window.live && window.live.stage.shown >= count", arg=count)
