"""Tells robots and displays over ZeroMQ what happens; docs/robots.md is for those who listen."""

from __future__ import annotations

import time
from collections import Counter

import msgspec

from stream.config import Config
from stream.events import (
    Answer,
    AnswerCancelled,
    AnswerText,
    Asked,
    Cut,
    Event,
    FrameReady,
    Looked,
    Notice,
    Outage,
    PictureChanged,
    Restarted,
    Shadow,
    Summary,
    Turned,
)
from stream.monitor.health import Vitals
from stream.monitor.schema import (
    Published,
    PublishedAnswer,
    PublishedAsked,
    PublishedCancelled,
    PublishedCut,
    PublishedDiscontinuity,
    PublishedFrame,
    PublishedLook,
    PublishedNotice,
    PublishedOutage,
    PublishedRestarted,
    PublishedShadow,
    PublishedStats,
    PublishedStatus,
    PublishedSummary,
    PublishedText,
    PublishedTurned,
    topic_of,
)
from stream.sinks.base import Sink
from stream.transport.curve import server_curve
from stream.transport.publisher import Publisher, TopicMessage

KEPT = ("status", "answer", "look", "turned", "frame", "stats")
"""Topics whose last message a newcomer gets."""

COPIED: dict[type[Event], type[Published]] = {
    Answer: PublishedAnswer,
    AnswerText: PublishedText,
    AnswerCancelled: PublishedCancelled,
    Asked: PublishedAsked,
    Cut: PublishedCut,
    PictureChanged: PublishedDiscontinuity,
    Looked: PublishedLook,
    Turned: PublishedTurned,
    Notice: PublishedNotice,
    Outage: PublishedOutage,
    Restarted: PublishedRestarted,
    Shadow: PublishedShadow,
    Summary: PublishedSummary,
}
"""Events that are published field by field."""

PUBLISHED: tuple[type[Published], ...] = (*COPIED.values(), PublishedFrame, PublishedStatus, PublishedStats)

TOPICS = tuple(topic_of(kind) for kind in PUBLISHED)
"""All that is published."""

UNPUBLISHED = {"slot", "map", "duration_s"}
"""Fields of a frame's event that are not copied as they are."""

FRAME_FIELDS = tuple(name for name in FrameReady.__struct_fields__ if name not in UNPUBLISHED)


class PublishSink(Sink):
    """Publishes at `config.output.publish`. `vitals` must have taken each event before this sink does.

    Raises OutputError where the address cannot be bound, ConfigError where it needs keys that are not there.
    """

    def __init__(self, config: Config, vitals: Vitals) -> None:
        endpoint = config.output.publish
        assert endpoint is not None
        self._vitals = vitals
        self._counts: Counter[str] = Counter()
        self._status: PublishedStatus | None = None
        self._encoder = msgspec.msgpack.Encoder()
        curve = server_curve(config.network, endpoint)
        self._publisher = Publisher(endpoint, curve, KEPT, self._stats, TOPICS)

    @property
    def endpoint(self) -> str:
        """Where it can be reached: the address asked for, with the number of a port that was left open."""
        return self._publisher.endpoint

    @property
    def dropped(self) -> int:
        return self._publisher.dropped

    def write(self, event: Event) -> None:
        status = self._vitals.status()
        if status != self._status and not isinstance(event, Notice):
            self._status = status
            self._publisher.publish(*self._stamped(status))
        message = published(event)
        if message is not None:
            self._publisher.publish(*self._stamped(message))

    def close(self) -> None:
        self._publisher.close()

    def _stats(self) -> tuple[TopicMessage]:
        return (self._stamped(self._vitals.stats(), msgspec.msgpack.Encoder()),)

    def _stamped(self, message: Published, encoder: msgspec.msgpack.Encoder | None = None) -> TopicMessage:
        """Numbered within its topic, and encoded."""
        topic = topic_of(type(message))
        self._counts[topic] += 1
        stamped = msgspec.structs.replace(message, seq=self._counts[topic], unix_ns=time.time_ns())
        return topic, (encoder or self._encoder).encode(stamped)


def published(event: Event) -> Published | None:
    """What is said of an event; None of those that only `status` and `stats` tell of."""
    if isinstance(event, FrameReady):
        shown = event.map
        return PublishedFrame(
            **{name: getattr(event, name) for name in FRAME_FIELDS},
            rows=None if shown is None else shown.rows,
            cols=None if shown is None else shown.cols,
            relevance=None if shown is None else shown.relevance,
            regions=None if shown is None else shown.regions,
        )
    kind = COPIED.get(type(event))
    if kind is None:
        return None
    own = set(kind.__struct_fields__)
    return kind(**{name: getattr(event, name) for name in event.__struct_fields__ if name in own})
