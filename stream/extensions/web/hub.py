"""The viewers of a camera's run, or of one run after another: each gets the state so far, then the events."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from arr_coc.types import REGION_SHAPES, TILE_PX
from stream.clock import RateLimit
from stream.config import WatchConfig, ZoneConfig
from stream.control import Ask
from stream.events import (
    AnswerDeltaEvent,
    Event,
    Explanation,
    FrameReady,
    Notice,
    StandingQuestion,
    Summary,
    WatchesChanged,
    YesNoResult,
    json_value,
)
from stream.extensions.web.chat.questions import SideReplies, WatchReplies
from stream.extensions.web.picture_requests import LivePictures, call_in
from stream.extensions.web.viewer import Viewer, ViewerMessage
from stream.monitor.health import HealthReport, RunMonitor
from stream.monitor.schema import STATS, STATUS, envelope, event_message
from stream.sources.address import name_of

if TYPE_CHECKING:
    from stream.extensions.web.sources import SourceChooser

HISTORY = 200
"""Number of past events that a new viewer receives."""

KEPT = (STATUS, "health", STATS, "look", "why", "detections")
"""Topics of which a new viewer receives the last message, of looks that for each watch."""

MATCHED = ("match", "clip")
"""Topics about matches, of which a new viewer receives the last ones beside the history."""

MATCHES = 100
"""Number of them."""

LOGGED = (
    *("answer", "asked", "cancelled", "cut", "discontinuity", "invalid", "outage", "restarted", "notice", "summary"),
    *("shadow", "budget", "turned", "match", "watches"),
)
"""Topics of the history."""

ENDS_DETECTIONS = ("answer", "cut", "discontinuity")
"""Topics after which the boxes of the answer before are not shown."""

STATS_EVERY_S = 1.0

QUESTIONS_A_SECOND = 2.0
QUESTIONS_AT_ONCE = 4.0

CHOICES_A_SECOND = 1.0
CHOICES_AT_ONCE = 4.0


@dataclass(frozen=True, slots=True)
class HubOptions:
    """`rate`: pictures a second; `greatest_px`: their greatest width; `control`: viewers may ask; `watches`: those of
    the run; `zones`: the run's, by name; `browser_camera`: the run waits for a viewer's camera; `compare`: there is a
    compare page; `past`: what cameras saw is remembered.
    `cameras` are the names of all cameras of the page, and `name` is that of this run; "" for a run without other
    cameras. `clips`: the folder of the run's clips, if any. `begun_with`: watches that
    it began with; `file`: its configuration file, if any."""

    rate: float
    greatest_px: int
    control: bool
    watches: tuple[StandingQuestion, ...] = ()
    zones: Mapping[str, ZoneConfig] = field(default_factory=dict)
    browser_camera: bool = False
    compare: bool = False
    past: bool = False
    name: str = ""
    cameras: tuple[str, ...] = ("",)
    clips: str | None = None
    begun_with: tuple[StandingQuestion, ...] = ()
    file: Path | None = None

    @property
    def number(self) -> int:
        """Place of the camera among those of the page, which its pictures carry."""
        return self.cameras.index(self.name)


class Hub:
    """Viewers of the run that `begin` names, until `finish`. Belongs to the event loop of the serving thread, except
    for methods marked otherwise.

    `pictures` shows them the run's pictures. With a `chooser` viewers choose the source.
    """

    def __init__(
        self, options: HubOptions, monitor: RunMonitor | None = None, chooser: SourceChooser | None = None
    ) -> None:
        self._options = options
        self._monitor = monitor
        self.sides = SideReplies()
        self.changes = WatchReplies()
        self._chooser = chooser
        self._runs = 0
        self._choices = RateLimit(CHOICES_A_SECOND, CHOICES_AT_ONCE)
        self._viewers: set[Viewer] = set()
        self.pictures = LivePictures(self._viewers, options.rate, options.number)
        self._state_messages: dict[str, dict[str, bytes]] = {}
        self._history: deque[bytes] = deque(maxlen=HISTORY)
        self._matches: deque[bytes] = deque(maxlen=MATCHES)
        self._speaking: tuple[int, str, float | None] | None = None
        self._questions = RateLimit(QUESTIONS_A_SECOND, QUESTIONS_AT_ONCE)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def viewers(self) -> int:
        """Number of viewers now."""
        return len(self._viewers)

    @property
    def monitor(self) -> RunMonitor | None:
        """State of the run; None while nothing runs."""
        return self._monitor

    @property
    def history(self) -> tuple[bytes, ...]:
        """Messages of past events, oldest first."""
        return tuple(self._history)

    @property
    def options(self) -> HubOptions:
        """Options of the page, and facts of its run."""
        return self._options

    @property
    def watches(self) -> tuple[StandingQuestion, ...]:
        """Watches of the run."""
        return self._options.watches

    @property
    def takes_camera(self) -> bool:
        """True if the run's source is a viewer's camera, and viewers may do more than look."""
        return self._options.browser_camera and self._options.control

    @property
    def clips(self) -> str | None:
        """Folder of the run's clips; None if it writes none."""
        return self._options.clips

    async def run(self, ending: asyncio.Event) -> None:
        """Send viewers figures and state once a second until `ending` is set."""
        self._loop = self.pictures.loop = asyncio.get_running_loop()
        if self._chooser is not None:
            self._chooser.on_change = lambda: call_in(self._loop, self._send_sources)
        while not ending.is_set():
            if self._viewers:
                await self._send_figures()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ending.wait(), STATS_EVERY_S)

    def begin(
        self,
        monitor: RunMonitor,
        *,
        watches: tuple[WatchConfig, ...] = (),
        browser_camera: bool = False,
        clips: str | None = None,
        zones: Mapping[str, ZoneConfig] | None = None,
        file: Path | None = None,
    ) -> None:
        """Show this run from here on, in place of the one before. Thread-safe.

        Args:
            monitor: Monitor of the run.
            watches: Its watches.
            browser_camera: Its source is a viewer's camera.
            clips: Folder of its clips.
            zones: Its zones, by name.
            file: Configuration file that it was read from.
        """
        self._monitor = monitor
        standing = tuple(map(StandingQuestion.of, watches))
        self._options = replace(
            self._options,
            watches=standing,
            begun_with=standing,
            file=file,
            browser_camera=browser_camera,
            clips=clips,
            zones=zones or {},
        )
        call_in(self._loop, self._begin)

    def finish(self) -> None:
        """The run is over; for any thread. With a chooser there is none until the next `begin`; without one, viewers
        see how it ended."""
        if self._chooser is None:
            call_in(self._loop, self.pictures.clear)
            return
        self._monitor = None
        self._options = replace(self._options, watches=(), begun_with=(), browser_camera=False, zones={})
        call_in(self._loop, self._finish)

    def unreachable(self, reason: str) -> None:
        """The source of the run cannot be opened yet; for any thread."""
        if self._monitor is not None:
            self._monitor.unreachable(reason)

    def fail(self, reason: str) -> None:
        """The run could not begin, or has ended without a summary; for any thread."""
        if self._monitor is not None:
            self._monitor.fail(reason)
        report = HealthReport("ended", reason, ready=False, frame_age_s=None, frames=0, answers=0)
        call_in(self._loop, self._keep, "health", self._encode("health", asdict(report)))

    def publish(self, event: Event) -> None:
        """Take the next event of the run; for any thread."""
        if isinstance(event, FrameReady):
            return
        message = _message_of(event)
        if message is not None:
            call_in(self._loop, self._publish, event, *message)

    def publish_status(self) -> None:
        """Send viewers the run's changed status; for any thread."""
        if self._monitor is not None:
            status = self._monitor.status()
            body = self._encode(STATUS, asdict(replace(status, source=name_of(status.source))))
            call_in(self._loop, self._keep, STATUS, body)

    def add(self, wake: asyncio.Event | None = None) -> Viewer:
        """Return a new viewer, with the state so far as its first messages. `wake` is set if a message waits for it."""
        viewer = Viewer(self._options.rate, self._options.greatest_px, wake, self.pictures.update)
        viewer.send(self._hello())
        if self._chooser is not None:
            viewer.send(self._encode("sources", self._chooser.described))
        for topic in KEPT:
            for body in self._state_messages.get(topic, {}).values():
                viewer.send(body)
        empty = self._encode("history", {"events": []})
        viewer.send(empty.removesuffix(b"]}") + b",".join(self._history) + b"]}")
        if self._matches:
            matches = self._encode("matches", {"events": []})
            viewer.send(matches.removesuffix(b"]}") + b",".join(self._matches) + b"]}")
        if self._speaking is not None:
            number, text, pts_s = self._speaking
            viewer.send(self._encode("text", {"answer": number, "text": text, "pts_s": pts_s}))
        self._viewers.add(viewer)
        self._send_count()
        self.pictures.show_newest(viewer)
        self.pictures.update()
        return viewer

    def remove(self, viewer: Viewer) -> None:
        """Forget a viewer that has left."""
        self._viewers.discard(viewer)
        self._send_count()

    def follow(self, viewer: Viewer, message: ViewerMessage) -> None:
        """Act on a viewer's message."""
        viewer.choose(message)
        if message.clock is not None:
            viewer.send(self._encode("clock", {"clock": message.clock}))
        if message.ask is not None:
            problem = self._ask(message.ask)
            if problem is not None:
                viewer.send(self._encode("refused", {"query": message.ask, "error": problem}))
        if message.chooses and (problem := self._choose(message)) is not None:
            viewer.send(self._encode("refused", {"choice": True, "error": problem}))
        self.pictures.update()

    def _ask(self, query: str) -> str | None:
        """Return why the question is not asked."""
        if not self._options.control:
            return "this page only shows; the run takes no questions from it"
        if not self._questions.take(time.monotonic()):
            return "too many questions at once; ask again in a moment"
        if self._monitor is None:
            return "nothing runs; choose a source first"
        return self._monitor.send(Ask(query))

    def _choose(self, message: ViewerMessage) -> str | None:
        """Return why a choice of the source is not followed."""
        if self._chooser is None or not self._options.control:
            return "this page only shows; its source cannot be changed from it"
        if not self._choices.take(time.monotonic()):
            return "too many choices at once; choose again in a moment"
        if message.choose is not None:
            return self._chooser.choose(message.choose)
        if message.open is not None:
            return self._chooser.open(message.open)
        return self._chooser.stop()

    def _send_sources(self) -> None:
        if self._chooser is not None:
            self._broadcast(self._encode("sources", self._chooser.described))

    def _begin(self) -> None:
        self._runs += 1
        self._state_messages.clear()
        self._history.clear()
        self._matches.clear()
        self._speaking = None
        self.pictures.clear()
        self._broadcast(self._hello())
        self._broadcast(self._encode("history", {"events": []}))

    def _finish(self) -> None:
        for topic in (STATUS, "health", STATS):
            self._state_messages.pop(topic, None)
        self._speaking = None
        self.pictures.clear()
        self._broadcast(self._hello())

    def _publish(self, event: Event, topic: str, fields: dict[str, Any]) -> None:
        if self.sides.take(event):
            return
        self.changes.take(event)
        if isinstance(event, AnswerDeltaEvent):
            if self._speaking is not None and self._speaking[0] == event.answer:
                before = self._speaking[1]
            else:
                before = ""
            self._speaking = event.answer, before + event.text, event.pts_s
        elif topic in ("answer", "cancelled"):
            self._speaking = None
        if topic in ENDS_DETECTIONS:
            self._state_messages.pop("detections", None)
        body = self._encode(topic, fields)
        if topic in LOGGED and not (isinstance(event, Notice) and event.code == "loading"):
            self._history.append(body)
        if topic in MATCHED:
            self._matches.append(body)
        if isinstance(event, WatchesChanged):
            self._options = replace(self._options, watches=tuple(event.watches))
            looks = self._state_messages.get("look", {})
            names = {watch.name for watch in event.watches}
            self._state_messages["look"] = {name: look for name, look in looks.items() if name in names}
        if isinstance(event, Summary) and self._monitor is not None:
            self._keep("health", self._encode("health", asdict(self._monitor.health())))
        self._keep(topic, body, event.watch if isinstance(event, YesNoResult) else "")

    def _keep(self, topic: str, body: bytes, watch: str = "") -> None:
        if topic in KEPT:
            self._state_messages.setdefault(topic, {})[watch] = body
        self._broadcast(body)

    def _broadcast(self, body: bytes) -> None:
        for viewer in self._viewers:
            viewer.send(body)

    async def _send_figures(self) -> None:
        monitor = self._monitor
        if monitor is None:
            return
        health = monitor.health()
        if health.status != "ended":
            stats = await asyncio.to_thread(monitor.stats)
            if monitor is not self._monitor:
                return
            self._keep(STATS, self._encode(STATS, asdict(stats)))
        self._keep("health", self._encode("health", asdict(health)))

    def _hello(self) -> bytes:
        options = self._options
        return self._encode(
            "hello",
            {
                "control": options.control,
                "rate": options.rate,
                "width": options.greatest_px,
                "watches": options.watches,
                "zones": [
                    {"name": name, "points": zone.polygon, "weight": zone.weight, "mask": zone.mask}
                    for name, zone in options.zones.items()
                ],
                "browser_camera": self.takes_camera,
                "run": self._runs,
                "number": options.number,
                "cameras": options.cameras if options.name else (),
                "compare": options.compare,
                "past": options.past,
                "clips": options.clips is not None,
                "tile_px": TILE_PX,
                "shapes": REGION_SHAPES,
            },
        )

    def _send_count(self) -> None:
        self._broadcast(self._encode("viewers", {"count": len(self._viewers)}))

    def _encode(self, topic: str, fields: dict[str, Any]) -> bytes:
        """Return a message, with the camera's name if it has one."""
        if self._options.name:
            labels = {"camera": self._options.name}
        else:
            labels = {}
        return encoded(topic, {**labels, **fields})


def _message_of(event: Event) -> tuple[str, dict[str, Any]] | None:
    """Return topic and fields of an event for viewers: those that are published, and the reasons for the tokens."""
    if isinstance(event, Explanation):
        return "why", msgspec.structs.asdict(event)
    message = event_message(event)
    if message is None:
        return None
    topic, fields = message
    for binary in ("relevance", "regions"):
        fields.pop(binary, None)  # come with the picture
    return topic, fields


def encoded(topic: str, fields: dict[str, Any]) -> bytes:
    """Return a message for viewers."""
    return msgspec.json.encode(json_value(msgspec.to_builtins(envelope(topic, fields, unix_ns=time.time_ns()))))
