"""A small OpenTelemetry collector: takes OTLP over HTTP, and keeps the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.http_server import LoopbackServer, QuietHandler
from tests.support.network import LIMIT_S


@dataclass
class ReceivedSpan:
    """A span as it was sent: times in nanoseconds since 1970, attributes as plain values."""

    name: str
    trace: bytes
    number: bytes
    parent: bytes
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    events: dict[str, int]


@dataclass
class Collector:
    """Received spans in their order, and the paths that they were posted to. `status` is that of its replies."""

    port: int = 0
    status: int = 200
    spans: list[ReceivedSpan] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    hold: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            resource = _values(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    self.spans.append(
                        ReceivedSpan(
                            span.name,
                            span.trace_id,
                            span.span_id,
                            span.parent_span_id,
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            _values(span.attributes),
                            resource,
                            {event.name: event.time_unix_nano for event in span.events},
                        )
                    )

    def roots(self) -> list[ReceivedSpan]:
        """The spans without a parent, in the order of their times."""
        return sorted((span for span in self.spans if not span.parent), key=lambda span: span.start_ns)

    def children(self, root: ReceivedSpan) -> list[ReceivedSpan]:
        """The spans of a root, in the order of their times."""
        children = [span for span in self.spans if span.parent == root.number and span.trace == root.trace]
        return sorted(children, key=lambda span: (span.start_ns, span.end_ns))


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in attributes}


@contextmanager
def collecting(port: int = 0, *, status: int = 200, holds: bool = False) -> Iterator[Collector]:
    """A collector at a port of this machine. `holds`: it answers nothing until it ends."""
    collector = Collector(status=status)
    if not holds:
        collector.hold.set()

    class Handler(QuietHandler, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.content()
            collector.hold.wait(LIMIT_S)
            if collector.status == 200:
                collector.take(self.path, body)
            self.send_whole(collector.status, ExportTraceServiceResponse().SerializeToString())

    with LoopbackServer(Handler, port) as server:
        collector.port = server.port
        try:
            yield collector
        finally:
            collector.hold.set()
