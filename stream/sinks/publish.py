"""Publishes a run over ZeroMQ to robots and displays; docs/robots.md is for those who listen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from stream.config import Config
from stream.events import Event, Notice
from stream.monitor.health import RunMonitor
from stream.monitor.schema import STATS, STATUS, TOPICS, StatusMessage, envelope, event_message
from stream.sinks.base import Sink
from stream.transport.security import server_curve
from stream.transport.services import Publisher, TopicMessage

KEPT = (STATUS, "answer", "look", "turned", "frame", STATS)
"""Topics whose last message a newcomer gets."""


class PublishSink(Sink):
    """Publishes at `config.output.publish`. `monitor` must have taken each event before this sink does.

    Raises OutputError where the address cannot be bound, ConfigError where it needs keys that are not there.
    """

    def __init__(self, config: Config, monitor: RunMonitor) -> None:
        endpoint = config.output.publish
        assert endpoint is not None
        self._monitor = monitor
        self._counts: Counter[str] = Counter()
        self._status: StatusMessage | None = None
        curve = server_curve(config.network, endpoint)
        self._publisher = Publisher(endpoint, curve, KEPT, self._stats, TOPICS)

    @property
    def endpoint(self) -> str:
        """Address at which it can be reached: the one asked for, with the number of a port that was left open."""
        return self._publisher.endpoint

    def write(self, event: Event) -> None:
        status = self._monitor.status()
        if status != self._status and not isinstance(event, Notice):
            self._status = status
            self._publisher.publish(*self._encoded(STATUS, msgspec.to_builtins(status)))
        message = event_message(event)
        if message is not None:
            self._publisher.publish(*self._encoded(*message))

    def close(self) -> None:
        self._publisher.close()

    def _stats(self) -> tuple[TopicMessage]:
        return (self._encoded(STATS, msgspec.to_builtins(self._monitor.stats())),)

    def _encoded(self, topic: str, fields: Mapping[str, Any]) -> TopicMessage:
        """The message, numbered within its topic."""
        self._counts[topic] += 1
        return topic, msgspec.msgpack.encode(envelope(topic, fields, self._counts[topic], time.time_ns()))
