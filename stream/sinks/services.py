"""Sinks that serve other programs over ZeroMQ: published events, and requests to ask or stop."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from stream.config import Config
from stream.errors import TransportError
from stream.events import Event, FrameReady, Notice
from stream.monitor.health import RunMonitor
from stream.monitor.schema import STATS, STATUS, TOPICS, VERSION, StatusMessage, envelope, event_message
from stream.sinks.base import Sink
from stream.transport.security import server_curve
from stream.transport.services import Publisher, RequestServer, TopicMessage

log = logging.getLogger(__name__)

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
            topic, fields = message
            if isinstance(event, FrameReady):
                fields["capture_unix_ns"] = time.time_ns() - time.monotonic_ns() + event.capture_ns
            self._publisher.publish(*self._encoded(topic, fields))

    def close(self) -> None:
        self._publisher.close()

    def _stats(self) -> tuple[TopicMessage]:
        return (self._encoded(STATS, msgspec.to_builtins(self._monitor.stats())),)

    def _encoded(self, topic: str, fields: Mapping[str, Any]) -> TopicMessage:
        """The message, numbered within its topic."""
        self._counts[topic] += 1
        return topic, msgspec.msgpack.encode(envelope(topic, fields, self._counts[topic], time.time_ns()))


EXAMPLE = '{"v": 1, "ask": "What is in front?"}'


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One of `ask`, the new question, and `status`, for the last status and statistics."""

    v: int = VERSION
    ask: str | None = None
    status: bool = False


class ControlReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`error` says why where `ok` is false. `status` and `stats` are as they are published."""

    v: int = msgspec.field(default_factory=lambda: VERSION)
    ok: bool
    error: str | None = None
    status: dict[str, Any] | None = None
    stats: dict[str, Any] | None = None


class RequestRefused(Exception):
    """A request cannot be done; never leaves this module."""


class ControlHandler:
    """Replies to requests, by what `monitor` knows of the run."""

    def __init__(self, monitor: RunMonitor) -> None:
        self._monitor = monitor

    def handle(self, body: bytes) -> bytes:
        """The reply, in the encoding of the request: JSON, or msgpack where it does not look like JSON."""
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
            problem = self._monitor.ask(request.ask)
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
    """The request that changes the question."""
    return msgspec.json.encode(ControlRequest(ask=query))


def read_reply(body: bytes) -> ControlReply:
    """The reply to one of these requests. Raises TransportError where it is none."""
    try:
        return msgspec.json.decode(body, type=ControlReply)
    except msgspec.MsgspecError as error:
        raise TransportError(f"the reply is invalid ({error}); is the address that of --control?") from error


class ControlSink(Sink):
    """Replies to requests in a thread of its own; it knows the run by `monitor`.

    Raises OutputError where the address cannot be bound, ConfigError where it needs keys that are not there.
    """

    def __init__(self, config: Config, monitor: RunMonitor) -> None:
        endpoint = config.output.control
        assert endpoint is not None
        self._server = RequestServer(endpoint, server_curve(config.network, endpoint), ControlHandler(monitor).handle)

    @property
    def endpoint(self) -> str:
        """Address at which it can be reached."""
        return self._server.endpoint

    def write(self, event: Event) -> None:
        pass

    def close(self) -> None:
        self._server.close()
