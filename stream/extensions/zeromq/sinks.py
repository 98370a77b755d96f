"""Sinks that serve other programs over ZeroMQ: published events, and requests for a question or the status."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from stream.config import Config
from stream.control import Ask
from stream.errors import TransportError
from stream.events import Event, FrameReady, Notice
from stream.extension import SinkOpening
from stream.extensions.zeromq.section import ZeromqSection
from stream.extensions.zeromq.services import Publisher, RequestServer, TopicMessage
from stream.monitor.health import RunMonitor
from stream.monitor.schema import STATS, STATUS, TOPICS, VERSION, StatusMessage, envelope, event_message
from stream.sinks.base import Sink
from stream.transport.security import server_curve

log = logging.getLogger(__name__)

KEPT = (STATUS, "answer", "detections", "look", "turned", "match", "frame", STATS)
"""Topics whose last message a new subscriber receives."""


class PublishSink(Sink):
    """Publisher of events at `zeromq.publish`. `monitor` must receive each event before this sink.

    Raises OutputError if the address cannot be bound, ConfigError if it needs keys that are missing.
    """

    def __init__(self, config: Config, monitor: RunMonitor) -> None:
        endpoint = ZeromqSection.of(config).publish
        assert endpoint is not None
        self._monitor = monitor
        self._counts: Counter[str] = Counter()
        self._status: StatusMessage | None = None
        curve = server_curve(config.network, endpoint)
        self._publisher = Publisher(endpoint, curve, KEPT, self._stats, TOPICS)

    @classmethod
    def open(cls, opening: SinkOpening) -> PublishSink:
        """Open the sink of a run."""
        return cls(opening.config, opening.monitor)

    @property
    def endpoint(self) -> str:
        """Bound address, with the actual port number."""
        return self._publisher.endpoint

    def write(self, event: Event) -> None:
        status = self._monitor.status()
        if status != self._status and not isinstance(event, Notice):
            self._status = status
            self._publisher.publish(*self._encode(STATUS, msgspec.to_builtins(status)))
        message = event_message(event)
        if message is not None:
            topic, fields = message
            if isinstance(event, FrameReady):
                fields["capture_unix_ns"] = time.time_ns() - time.monotonic_ns() + event.capture_ns
            self._publisher.publish(*self._encode(topic, fields))

    def close(self) -> None:
        self._publisher.close()

    def _stats(self) -> tuple[TopicMessage]:
        return (self._encode(STATS, msgspec.to_builtins(self._monitor.stats())),)

    def _encode(self, topic: str, fields: Mapping[str, Any]) -> TopicMessage:
        """Return a message, numbered within its topic."""
        self._counts[topic] += 1
        return topic, msgspec.msgpack.encode(envelope(topic, fields, self._counts[topic], time.time_ns()))


EXAMPLE = '{"v": 1, "ask": "What is in front?"}'


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request with `ask`, the new question, or `status`, for the last status and statistics."""

    v: int = VERSION
    ask: str | None = None
    status: bool = False


class ControlReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reply to a request. `error`: the reason if `ok` is false. `status` and `stats` are as published."""

    v: int = msgspec.field(default_factory=lambda: VERSION)
    ok: bool
    error: str | None = None
    status: dict[str, Any] | None = None
    stats: dict[str, Any] | None = None


class RequestRefused(Exception):
    """Refusal of a request; never leaves this module."""


class ControlHandler:
    """Handler of requests, with the run's state from `monitor`."""

    def __init__(self, monitor: RunMonitor) -> None:
        self._monitor = monitor

    def handle(self, body: bytes) -> bytes:
        """Return the reply in the encoding of the request: JSON, or msgpack if the request does not begin like JSON."""
        codec = msgspec.json if body.lstrip()[:1] in (b"{", b"[", b'"', b"") else msgspec.msgpack
        try:
            reply = self._reply(codec.decode(body, type=ControlRequest))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            reply = ControlReply(ok=False, error=f"not a request: {error}; send for example {EXAMPLE}")
        except RequestRefused as error:
            reply = ControlReply(ok=False, error=str(error))
        except Exception as error:
            log.warning("a request failed", exc_info=True)
            reply = ControlReply(ok=False, error=f"unexpected {type(error).__name__}")
        return codec.encode(reply)

    def _reply(self, request: ControlRequest) -> ControlReply:
        if request.v != VERSION:
            raise RequestRefused(f"version {request.v} is not known; this run uses version {VERSION}")
        if request.ask is None and not request.status:
            raise RequestRefused(f'the request is empty; send for example {EXAMPLE}, or {{"status": true}}')
        if request.ask is not None:
            problem = self._monitor.send(Ask(request.ask))
            if problem is not None:
                raise RequestRefused(problem)
        if not request.status:
            return ControlReply(ok=True)
        return ControlReply(
            ok=True,
            status=envelope(STATUS, msgspec.to_builtins(self._monitor.status())),
            stats=envelope(STATS, msgspec.to_builtins(self._monitor.stats())),
        )


def ask_request(query: str) -> bytes:
    """Return the request that changes the question."""
    return msgspec.json.encode(ControlRequest(ask=query))


def read_reply(body: bytes) -> ControlReply:
    """Decode the reply to a request. Raises TransportError if it is invalid."""
    try:
        return msgspec.json.decode(body, type=ControlReply)
    except msgspec.MsgspecError as error:
        raise TransportError(f"the reply is invalid ({error}); is the address that of --control?") from error


class ControlSink(Sink):
    """Server of requests in a separate thread, with the run's state from `monitor`.

    Raises OutputError if the address cannot be bound, ConfigError if it needs keys that are missing.
    """

    def __init__(self, config: Config, monitor: RunMonitor) -> None:
        endpoint = ZeromqSection.of(config).control
        assert endpoint is not None
        self._server = RequestServer(endpoint, server_curve(config.network, endpoint), ControlHandler(monitor).handle)

    @classmethod
    def open(cls, opening: SinkOpening) -> ControlSink:
        """Open the sink of a run."""
        return cls(opening.config, opening.monitor)

    @property
    def endpoint(self) -> str:
        """Bound address."""
        return self._server.endpoint

    def write(self, event: Event) -> None:
        pass

    def close(self) -> None:
        self._server.close()
