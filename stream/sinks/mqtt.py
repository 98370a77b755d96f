"""Sink that publishes a run to an MQTT broker, and so to Home Assistant (docs/home-assistant.md)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import asdict

import msgspec

from stream import logs
from stream.config import Config
from stream.events import (
    Answer,
    AskedPicture,
    Event,
    Match,
    QueryChanged,
    Started,
    YesNoResult,
    encode_event,
    rounded,
)
from stream.monitor.health import RunMonitor
from stream.mqtt.broker import Broker, device_name
from stream.mqtt.link import RETRY_S, MqttLink
from stream.mqtt.topics import MATCH, MqttMessage, RunTopics
from stream.sinks.base import Sink, program_version
from stream.web.viewer import RateLimit

QUESTIONS_A_SECOND, QUESTIONS_AT_ONCE = 2.0, 4.0

log = logging.getLogger(__name__)


class MqttSink(Sink):
    """Publisher of a run's events at the broker `config.output.mqtt`; `monitor` must receive each event first.

    After construction, no method waits for the broker. Raises ConfigError for what Broker refuses, OutputError if the
    broker rejects this client. `retry_s`: as for MqttLink.
    """

    def __init__(self, config: Config, monitor: RunMonitor, retry_s: tuple[float, float] = RETRY_S) -> None:
        output = config.output
        self._monitor = monitor
        self._asked = config.asked
        self.topics = RunTopics(
            device_name(config),
            watches=tuple((watch.name, watch.question) for watch in config.watch if watch.mqtt),
            ask=output.mqtt_ask,
            picture=output.mqtt_picture,
        )
        self._questions = RateLimit(QUESTIONS_A_SECOND, QUESTIONS_AT_ONCE)
        self._state: str | None = None
        self._holds: dict[str, str | None] = {name: None for name, _ in self.topics.watches}
        self._open = True
        self.link = MqttLink(
            Broker.of(config),
            f"arr_coc_{self.topics.name}",
            self.topics.set_availability(False),
            self._figures,
            (self.topics.question_set, self._ask) if output.mqtt_ask else None,
            retry_s,
        )
        if output.mqtt_discovery is not None:
            self.link.put(self.topics.discovery(output.mqtt_discovery, program_version()))
        self.link.put(self.topics.set_availability(True))
        for watch in self._holds:
            self.link.put(self.topics.set_verdict(watch, None))
        self.link.put(self.topics.set_question(self._asked))
        self._send_state()
        try:
            # longest wait for the first attempt; a wrong password is reported before the model is loaded
            self.link.start(3.0)
        except BaseException:
            self.link.close()
            raise

    def write(self, event: Event) -> None:
        self._send_state()
        if isinstance(event, Answer):
            self.link.put(MqttMessage(self.topics.answer, encode_event(event).encode()))
        elif isinstance(event, AskedPicture) and event.asked and self.topics.picture:
            self.link.put(MqttMessage(self.topics.picture_topic, event.jpeg))
        elif isinstance(event, YesNoResult) and event.watch in self._holds:
            details = self.topics.verdict_details(event.watch)
            self.link.put(MqttMessage(details, encode_event(event).encode(), retain=True))
            if event.holds != self._holds[event.watch]:
                self._holds[event.watch] = event.holds
                self.link.put(self.topics.set_verdict(event.watch, event.holds))
        elif isinstance(event, Match) and event.watch in self._holds:
            body = b'{"event_type":"%b",%b' % (MATCH.encode(), encode_event(event).encode().removeprefix(b"{"))
            self.link.put(MqttMessage(self.topics.match(event.watch), body))
        elif isinstance(event, Started) or (isinstance(event, QueryChanged) and event.error is None):
            self.link.put(self.topics.set_question(event.query))

    def close(self) -> None:
        if self._open:
            self._open = False
            self.link.put(self.topics.set_availability(False))
            self.link.close()

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
        body = msgspec.json.encode(rounded(msgspec.to_builtins(stats)))
        return (MqttMessage(self.topics.figures, body),)

    def _ask(self, payload: bytes) -> None:
        """Ask a question from the broker; called in the link's thread."""
        if self._questions.take(time.monotonic()):
            problem = self._monitor.ask(payload.decode("utf-8", "replace").strip())
        else:
            problem = "too many questions at once"
        if problem is not None:
            logs.say(f"note: a question from MQTT was refused: {problem}", "warning", event="mqtt", refused=problem)
