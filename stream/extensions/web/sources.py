"""Sources that viewers may choose, and the choice that holds; between the page and the thread that runs them."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import cv2
import numpy as np

from stream.control import RunControl
from stream.errors import ConfigError
from stream.protocol.picture_files import encode_jpeg
from stream.scenes import SCENE_NAMES, load_scene
from stream.sources.address import BROWSER, SCENE_PREFIX, SCREEN_PREFIX, STDIN, name_of, redacted, scrubbed
from stream.sources.cameras import Camera, list_cameras
from stream.untrusted import printable_span

CAMERAS_EVERY_S = 3.0
"""Time between two looks for cameras while nothing runs."""

ADDRESS_CHARS_MAX = 2000

THUMBNAIL_PX = 128
"""Width of a scene's picture among the sources."""

NAME = re.compile(r"[^\s=/][^=/]{0,59}")

Kind = Literal["named", "camera", "scene", "browser", "free"]
State = Literal["idle", "opening", "running", "ending"]


@dataclass(frozen=True, slots=True)
class OfferedSource:
    """A source with its name on the page. `address` may hold a password, and is never sent to viewers.

    `problem` is why it cannot be chosen, if that is known in advance.
    """

    kind: Kind
    name: str
    address: str = field(repr=False)
    note: str = ""
    problem: str | None = None

    @property
    def key(self) -> str:
        """Kind and name: a source named by a user cannot replace one of another kind."""
        return f"{self.kind}/{self.name}"

    @property
    def described(self) -> dict[str, Any]:
        """The source for the page."""
        return {"key": self.key, "kind": self.kind, "name": self.name, "note": self.note, "problem": self.problem}


@dataclass(frozen=True, slots=True)
class ChosenSource:
    """A choice, and the control by which its run is ended from any thread, also before it has begun."""

    source: OfferedSource
    control: RunControl


def read_named(texts: Iterable[str]) -> list[OfferedSource]:
    """Return the sources of `NAME=SOURCE`. Raises ConfigError for anything else, and for a name that comes twice."""
    sources: dict[str, OfferedSource] = {}
    for text in texts:
        name, equals, address = text.partition("=")
        name = name.strip()
        address = address.strip()
        if not equals or not NAME.fullmatch(name) or not address:
            raise ConfigError(f"a source for the page is NAME=SOURCE, such as door=rtsp://camera/1; got {text!r}")
        if name in sources:
            raise ConfigError(f"two sources are called {name!r}; give each a different name")
        if address == STDIN:
            raise ConfigError(f"{text!r}: standard input can be read only once; name a file or a camera")
        sources[name] = OfferedSource("named", name, address, printable_span(name_of(address)))
    return list(sources.values())


def scene_sources() -> list[OfferedSource]:
    """Return the drawn scenes."""
    return [OfferedSource("scene", name, f"{SCENE_PREFIX}{name}") for name in SCENE_NAMES]


DEMO_SCENE = OfferedSource("scene", "demo", f"{SCENE_PREFIX}demo")


@lru_cache(maxsize=len(SCENE_NAMES))
def scene_thumbnail(name: str) -> bytes:
    """Return the middle of a drawn scene as a small JPEG. Raises SourceNotFound for other names."""
    scene = load_scene(name)
    picture = scene.render(scene.frames // 2)
    height_px = round(THUMBNAIL_PX * picture.shape[0] / picture.shape[1])
    small = cv2.resize(picture, (THUMBNAIL_PX, height_px), interpolation=cv2.INTER_AREA)
    return encode_jpeg(np.asarray(small, np.uint8))


def camera_sources(cameras: Sequence[Camera]) -> list[OfferedSource]:
    """Return the cameras of this machine."""
    return [
        OfferedSource("camera", camera.device, camera.address, printable_span(camera.name), camera.problem)
        for camera in cameras
    ]


class SourceChooser:
    """The choice among the offered sources. Viewers choose and stop, from any thread; one thread takes and runs.

    `free`: viewers may also open any address, which is access to files and network of this machine. `on_change` is
    called, from any thread, when `described` has changed.
    """

    def __init__(
        self,
        sources: Sequence[OfferedSource],
        *,
        free: bool = False,
        browser: bool = False,
        find_cameras: Callable[[], list[Camera]] = list_cameras,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._free = free
        self._find_cameras = find_cameras
        if browser:
            devices = [OfferedSource("browser", "this browser’s camera", BROWSER)]
        else:
            devices = []
        self._fixed = [*sources, *devices, *scene_sources()]
        self._cameras: list[OfferedSource] = []
        self._lock = threading.Lock()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._next_source: OfferedSource | None = None
        self._current: ChosenSource | None = None
        self._state: State = "idle"
        self._error: str | None = None
        self._remark: str | None = None
        self._left = False
        self._quitting = False

    @property
    def left(self) -> bool:
        """True if viewers, or the end of the program, ended the present run."""
        return self._left

    @property
    def described(self) -> dict[str, Any]:
        """Contents of the page: the offered sources, the state, the chosen one, and how the last one ended."""
        with self._lock:
            now = self._next_source or (self._current.source if self._current is not None else None)
            return {
                "offered": [source.described for source in [*self._fixed, *self._cameras]],
                "free": self._free,
                "state": self._state,
                "now": None if now is None else now.described,
                "error": self._error,
                "remark": self._remark,
            }

    def choose(self, key: str) -> str | None:
        """Run the source of this key, in place of the present one; return why it cannot be."""
        source = next((source for source in [*self._fixed, *self._cameras] if source.key == key), None)
        if source is None:
            return "there is no such source; choose one that the page offers"
        if source.problem is None:
            self._want(source)
        return source.problem

    def open(self, address: str) -> str | None:
        """Run the source at an address that a viewer typed; return why it cannot be."""
        address = address.strip()
        if not self._free:
            return "this page opens the offered sources only; start it with --any-source to open others"
        if not address or len(address) > ADDRESS_CHARS_MAX or address in (STDIN, BROWSER):
            return "give a camera, a file, or an address such as rtsp://camera.local/stream"
        if address.startswith(SCREEN_PREFIX):
            return "a screen of the server is shown only if its command names it, as NAME=screen:"
        self._want(OfferedSource("free", printable_span(redacted(address)), address))
        return None

    def stop(self) -> str | None:
        """End the present run; return why it cannot be."""
        with self._lock:
            self._next_source = None
            current = self._current
            if current is None:
                return "nothing runs"
            self._state = "ending"
            self._left = True
        current.control.cancel()
        self.on_change()
        return None

    def quit(self) -> None:
        """End the present run and `take` no more; safe in a signal handler."""
        self._quitting = self._left = True
        if self._current is not None:
            self._current.control.cancel()
        self._wake.put(None)

    def take(self) -> ChosenSource | None:
        """Wait for a choice and return it, once the run before it has `ended`; None after `quit`."""
        while not self._quitting:
            with self._lock:
                source = self._next_source
                self._next_source = None
                if source is not None:
                    self._current = ChosenSource(source, RunControl())
                    self._state = "opening"
                    self._error = None
                    self._remark = None
                    self._left = False
            if source is not None:
                self.on_change()
                return None if self._quitting else self._current
            with suppress(queue.Empty):
                self._wake.get(timeout=CAMERAS_EVERY_S)
                continue
            self.find_cameras()
        return None

    def find_cameras(self) -> None:
        """Look for cameras, and offer those that are there."""
        cameras = camera_sources(self._find_cameras())
        if cameras != self._cameras:
            self._cameras = cameras
            self.on_change()

    def running(self) -> None:
        """The chosen source is open."""
        with self._lock:
            if self._state == "opening":
                self._state = "running"
        self.on_change()

    def ended(self, remark: str | None = None, error: str | None = None) -> None:
        """The run of the chosen source is over. `remark` is how, `error` why it failed, unless viewers ended it.

        A password in either is left out.
        """
        with self._lock:
            current = self._current
            self._current = None
            self._state = "idle"
            if current is not None and not self._left:
                address = current.source.address
                if error is None:
                    self._error = None
                else:
                    self._error = printable_span(scrubbed(error, address))
                if remark is None:
                    self._remark = None
                else:
                    self._remark = f"{current.source.name}: {remark}"
        self.on_change()

    def _want(self, source: OfferedSource) -> None:
        with self._lock:
            self._next_source = source
            current = self._current
            self._error = self._remark = None
            if current is not None:
                self._state = "ending"
                self._left = True
        if current is not None:
            current.control.cancel()
        self._wake.put(None)
        self.on_change()
