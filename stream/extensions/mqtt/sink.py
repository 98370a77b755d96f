"""Sink that publishes a run to an MQTT broker, and so to Home Assistant (docs/home-assistant.md)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from stream import logs
from stream.clock import RateLimit
from stream.config import Config
from stream.control import Ask
from stream.events import (
    Answer,
    AskedPicture,
    ClipWritten,
    Detections,
    Event,
    Match,
    QueryChanged,
    Started,
    WatchesChanged,
    YesNoResult,
    encode_event,
    encode_fields,
    event_fields,
    json_value,
)
from stream.extension import SinkOpening
from stream.extensions.mqtt.broker import Broker, device_name
from stream.extensions.mqtt.link import RETRY_S, MqttLink
from stream.extensions.mqtt.section import MqttSection
from stream.extensions.mqtt.topics import MATCH, MqttMessage, RunTopics
from stream.http.address import parse_address
from stream.monitor.health import RunMonitor
from stream.sinks.base import Sink, program_version

QUESTIONS_A_SECOND = 2.0
QUESTIONS_AT_ONCE = 4.0

log = logging.getLogger(__name__)


def page_address(config: Config) -> str | None:
    """Return the address of the live page, without a token, for links; None without a page."""
    address = config.value("web.address")
    if address is None:
        return None
    host, port = parse_address(address)
    if host in ("0.0.0.0", "::"):
        hostname = os.uname().nodename
    else:
        hostname = f"[{host}]" if ":" in host else host
    scheme = "http" if config.value("web.cert") is None else "https"
    return f"{scheme}://{hostname}:{port}"


class MqttSink(Sink):
    """Publisher of a run's events at the broker `mqtt.url`; `monitor` must receive each event first.

    An answer is sent if it differs from the one before, a check if its verdict does. What does not change anything is
    sent every `mqtt.every_s`: details of checks, and pictures, of which each match has one, too.

    After construction, no method waits for the broker. Raises ConfigError for what Broker refuses, OutputError if the
    broker rejects this client. `retry_s`: as for MqttLink. `now_s`: clock that counts `mqtt.every_s`.
    """

    def __init__(
        self,
        config: Config,
        monitor: RunMonitor,
        retry_s: tuple[float, float] = RETRY_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        section = MqttSection.of(config)
        clips = config.value("clips.folder")
        self._now_s = now_s
        self._every_s = section.every_s
        self._sent_s: dict[str, float] = {}
        self._answer: tuple[object, ...] = ()
        self._picture: AskedPicture | None = None
        self._monitor = monitor
        self._question = config.first_question
        self.topics = RunTopics(
            device_name(config),
            watches=tuple((watch.name, watch.question) for watch in config.watch if watch.mqtt),
            ask=section.ask,
            picture=section.picture,
            schema=config.answer.schema_of_answers,
            clips=clips is not None,
        )
        self._clip_folder = Path(clips or "")
        self._page = page_address(config)
        self._clips: dict[str, dict[str, Any]] = {}
        self._looks: dict[str, YesNoResult] = {}
        self._questions = RateLimit(QUESTIONS_A_SECOND, QUESTIONS_AT_ONCE)
        self._state: str | None = None
        self._holds: dict[str, str | None] = {name: None for name, _ in self.topics.watches}
        self._open = True
        self.link = MqttLink(
            Broker.of(config),
            f"arr_coc_{self.topics.name}",
            self.topics.set_availability(False),
            self._figures,
            (self.topics.question_set, self._ask) if section.ask else None,
            retry_s,
            section.every_s,
        )
        if section.discovery is not None:
            self.link.put(self.topics.discovery(section.discovery, program_version()))
        self.link.put(self.topics.set_availability(True))
        for watch in self._holds:
            self.link.put(self.topics.set_verdict(watch, None))
        self.link.put(self.topics.set_question(self._question))
        self._send_state()
        try:
            # longest wait for the first attempt; a wrong password is reported before the model is loaded
            self.link.connect(3.0)
        except BaseException:
            self.link.close()
            raise

    @classmethod
    def open(cls, opening: SinkOpening) -> MqttSink:
        """Open the sink of a run."""
        return cls(opening.config, opening.monitor)

    def write(self, event: Event) -> None:
        self._send_state()
        if isinstance(event, Answer):
            # not twice in a row with the same text and fields
            content = event.query, event.text, event.fields
            if content != self._answer:
                self._answer = content
                self.link.put(MqttMessage(self.topics.answer, encode_event(event).encode()))
        elif isinstance(event, Detections):
            self.link.put(MqttMessage(self.topics.detections, encode_event(event).encode()))
        elif isinstance(event, AskedPicture) and event.asked and self.topics.picture:
            self._picture = event
            if self._is_due(self.topics.picture_topic):
                self._send_picture()
        elif isinstance(event, YesNoResult) and event.watch in self._holds:
            self._looks[event.watch] = event
            has_changed = event.holds != self._holds[event.watch]
            if self._is_due(self.topics.verdict_details(event.watch)) or has_changed:
                self._send_details(event)
            if has_changed:
                self._holds[event.watch] = event.holds
                self.link.put(self.topics.set_verdict(event.watch, event.holds))
        elif isinstance(event, Match) and event.watch in self._holds:
            self._send_picture()
            body = encode_fields({"event_type": MATCH, **event_fields(event)})
            self.link.put(MqttMessage(self.topics.match(event.watch), body.encode()))
        elif isinstance(event, ClipWritten):
            self._send_clip(event)
        elif isinstance(event, WatchesChanged):
            for name in set(self._holds) - {watch.name for watch in event.watches}:
                self.link.put(self.topics.set_verdict(name, None))
                del self._holds[name]
        elif isinstance(event, Started) or (isinstance(event, QueryChanged) and event.error is None):
            self.link.put(self.topics.set_question(event.query))

    def close(self) -> None:
        if self._open:
            self._open = False
            self.link.put(self.topics.set_availability(False))
            self.link.close()

    def _is_due(self, topic: str) -> bool:
        """Return whether the time since a topic's last message has passed, and begin another one then."""
        now_s = self._now_s()
        if now_s - self._sent_s.get(topic, float("-inf")) < self._every_s:
            return False
        self._sent_s[topic] = now_s
        return True

    def _send_picture(self) -> None:
        """Send the newest picture unless it was sent."""
        if self._picture is not None:
            self.link.put(MqttMessage(self.topics.picture_topic, self._picture.jpeg))
            self._picture = None

    def _send_clip(self, clip: ClipWritten) -> None:
        """Send the picture of a match once it is written, and the names of its files as attributes."""
        places = {
            f"{kind}_url": f"{self._page}/clips/{quote(name)}"
            for kind, name in (("picture", clip.picture), ("video", clip.video))
            if self._page is not None and name is not None
        }
        fields = {**event_fields(clip), **places}
        self.link.put(MqttMessage(self.topics.match_clip, encode_fields(fields).encode(), retain=True))
        self._clips[clip.watch] = fields
        if (look := self._looks.get(clip.watch)) is not None:
            self._send_details(look)
        if clip.picture is not None and clip.video is None and clip.error is None:
            with suppress(OSError):
                self.link.put(MqttMessage(self.topics.match_picture, (self._clip_folder / clip.picture).read_bytes()))

    def _send_details(self, look: YesNoResult) -> None:
        """Send a check, with the newest clip of its watch."""
        details = event_fields(look)
        if (clip := self._clips.get(look.watch)) is not None:
            details["clip"] = clip
        self.link.put(
            MqttMessage(self.topics.verdict_details(look.watch), encode_fields(details).encode(), retain=True)
        )

    def _send_state(self) -> None:
        state = self._monitor.status().state
        if state != self._state:
            self._state = state
            self.link.put(MqttMessage(self.topics.state, state.encode(), retain=True))

    def _figures(self) -> Iterable[MqttMessage]:
        """Return the current figures; called in the link's thread."""
        try:
            stats = asdict(self._monitor.stats())
        except Exception:
            log.warning("the figures could not be sent to MQTT", exc_info=True)
            return ()
        stats["dropped"] = sum(stats["dropped"].values())
        body = msgspec.json.encode(json_value(msgspec.to_builtins(stats)))
        return (MqttMessage(self.topics.figures, body),)

    def _ask(self, payload: bytes) -> None:
        """Ask a question from the broker; called in the link's thread."""
        if self._questions.take(time.monotonic()):
            problem = self._monitor.send(Ask(payload.decode("utf-8", "replace").strip()))
        else:
            problem = "too many questions at once"
        if problem is not None:
            logs.say(f"note: a question from MQTT was refused: {problem}", "warning", event="mqtt", refused=problem)
