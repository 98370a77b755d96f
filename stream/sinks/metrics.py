"""Prometheus metrics and health of a run, and the HTTP server of /metrics, /healthz and /readyz."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from stream.config import Config
from stream.errors import OutputError
from stream.events import Answer, Event, FrameReady, Glance, YesNoResult
from stream.monitor.health import HealthReport, RunMonitor
from stream.monitor.schema import StatsMessage
from stream.sinks.base import Sink

CONNECTIONS_MAX = 8
"""Connections open at a time. The oldest is closed for one more, so that a thousand idle clients take eight threads and
keep nobody out."""

READ_LIMIT_S = 5.0
"""Seconds that a client may be silent."""

POLL_S = 0.1
STOP_LIMIT_S = 5.0

FRAME_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
TTFT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)

log = logging.getLogger(__name__)


class MetricsSink(Sink):
    """Serves /metrics, /healthz and /readyz. `monitor` must have taken each event before this sink does.

    Raises OutputError where the port cannot be had.
    """

    def __init__(self, config: Config, monitor: RunMonitor) -> None:
        port = config.output.metrics_port
        assert port is not None
        self._monitor = monitor
        disable_created_metrics()
        self._registry = CollectorRegistry(auto_describe=False)
        self._collector = RunCollector(monitor, self._registry)
        self._server = HttpServer(config.output.metrics_host, port, self._page)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which it is served."""
        return self._server.address

    def write(self, event: Event) -> None:
        self._collector.add(event)

    def close(self) -> None:
        self._server.close()

    def _page(self, path: str) -> Page | None:
        if path == "/metrics":
            return Page(200, CONTENT_TYPE_LATEST, generate_latest(self._registry))
        health = self._monitor.health()
        if path == "/healthz":
            return _health_page(health, health.healthy)
        return _health_page(health, health.healthy and health.ready) if path == "/readyz" else None


def _health_page(health: HealthReport, good: bool) -> Page:
    return Page(200 if good else 503, "application/json", msgspec.json.encode(health) + b"\n")


class RunCollector(Collector):
    """Metrics of a run: histograms of its events, and its statistics, read anew for every scrape."""

    def __init__(self, monitor: RunMonitor, registry: CollectorRegistry) -> None:
        self._monitor = monitor
        self._holds: str | None = None

        def histogram(name: str, since_capture_to: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, f"From a frame's capture to {since_capture_to}.", buckets=buckets, registry=registry)

        self._latency = histogram("arr_coc_frame_latency_seconds", "its allocation", FRAME_BUCKETS_S)
        self._ttft = histogram("arr_coc_ttft_seconds", "the answer's first token", TTFT_BUCKETS_S)
        self._yes_no = histogram("arr_coc_look_seconds", "its look at a standing question", TTFT_BUCKETS_S)
        self._glance = Histogram(
            "arr_coc_glance_seconds",
            "From sending an overview to where the model looked.",
            buckets=TTFT_BUCKETS_S,
            registry=registry,
        )
        registry.register(self)

    def add(self, event: Event) -> None:
        if isinstance(event, FrameReady):
            self._latency.observe(max(0, event.ready_ns - event.capture_ns) / 1e9)
        elif isinstance(event, Answer) and event.timing is not None:
            self._ttft.observe(event.timing.ttft_ms / 1e3)
        elif isinstance(event, Glance) and event.timing is not None:
            self._glance.observe(event.timing.total_ms / 1e3)
        elif isinstance(event, YesNoResult) and event.timing is not None:
            self._holds = event.holds
            self._yes_no.observe(event.timing.total_ms / 1e3)

    def collect(self) -> Iterator[Metric]:
        """Everything but the histograms, which the registry collects itself."""
        stats, health = self._monitor.stats(), self._monitor.health()
        for name, help_text, total in _counters(stats):
            yield CounterMetricFamily(f"arr_coc_{name}", help_text, value=total)
        for name, help_text, value in (*_gauges(stats), *self._states(health)):
            if value is not None:
                yield GaugeMetricFamily(f"arr_coc_{name}", help_text, value=value)
        dropped = CounterMetricFamily("arr_coc_dropped", "Dropped, by queue and cause.", labels=["queue"])
        restarts = CounterMetricFamily("arr_coc_restarts", "Processes started again.", labels=["process"])
        memory = GaugeMetricFamily("arr_coc_resident_memory_bytes", "Resident memory.", labels=["process"])
        for family, values in ((dropped, stats.dropped), (restarts, stats.restarts), (memory, stats.memory_bytes)):
            for label, count in values.items():
                family.add_metric([label], count)
            yield family

    def _states(self, health: HealthReport) -> Iterator[tuple[str, str, float | None]]:
        verdict = None if self._holds is None else float(self._holds == "yes")
        yield "watched_for", "1 while the answer to the standing query is yes.", verdict
        yield "outage_active", "1 while a live source is lost.", float(health.status == "outage")
        yield "healthy", "1 while /healthz returns 200.", float(health.healthy)


def _counters(stats: StatsMessage) -> Iterator[tuple[str, str, float]]:
    yield "frames", "Frames allocated.", stats.frames
    yield "answers", "Whole answers.", stats.answers
    yield "glances", "Looks at an overview before an answer.", stats.glances
    yield "glance_tokens", "Visual tokens of these.", stats.glance_tokens
    yield "cuts", "Scene cuts.", stats.cuts
    yield "shadow_checks", "Answers compared with those of all tokens.", stats.checks
    yield "shadow_same", "Of these, answers that were the same.", stats.checks_same
    yield "skipped", "Parts of the source that could not be used.", stats.skipped
    yield "outages", "Times that a live source was lost.", stats.outages
    yield "outage_seconds", "Time that the source was lost, in outages that are over.", stats.outages_s
    yield "deadline_misses", "Frames later than one source period.", stats.deadline_misses or 0


def _gauges(stats: StatsMessage) -> Iterator[tuple[str, str, float | None]]:
    yield "uptime_seconds", "Since the run was started.", stats.uptime_s
    yield "fps", "Frames a second, over the last two seconds.", stats.fps
    yield "tokens", "Visual tokens of the newest frame.", stats.tokens
    yield "tiles", "Tiles of the newest frame.", stats.tiles
    yield "dirty_share", "Share of tiles that changed, over the last two seconds.", stats.dirty_share
    yield "budget", "Tokens per frame under the latency target.", stats.budget
    yield "shadow_words_share", "Mean share of equal words in compared answers.", stats.checks_words
    target_s, p95_s = _seconds(stats.target_ms), _seconds(stats.ttft_p95_ms)
    yield "ttft_target_seconds", "Target for p95 of the time to the first token.", target_s
    yield "ttft_p95_seconds", "From a frame's capture to the first token, over the last 60 answers.", p95_s
    if stats.jitter is not None:
        over = "over the last ten seconds"
        smoothed_s, std_s = stats.jitter.interarrival_ms / 1e3, stats.jitter.interval_std_ms / 1e3
        yield "jitter_interarrival_seconds", f"RFC 3550's smoothed estimate, {over}.", smoothed_s
        yield "jitter_interval_std_seconds", f"Standard deviation of output gaps minus PTS gaps, {over}.", std_s


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


@dataclass(frozen=True, slots=True)
class Page:
    """The reply to one request."""

    status: int
    content_type: str
    body: bytes


Pages = Callable[[str], Page | None]
"""The page at a path, or None where there is none."""


class HttpServer(ThreadingHTTPServer):
    """Serves `pages` at `host` and `port`, with a daemon thread for each connection.

    Raises OutputError where the port cannot be had.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        self.pages = pages
        self._open: list[socket.socket] = []
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise OutputError(f"cannot serve metrics at {host}:{port}: {_reason(error)}") from error
        self.address = str(self.server_address[0]), int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_S,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes every connection and stops serving; may be called twice."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join(STOP_LIMIT_S)
        self.server_close()
        for connection in self._open:
            _hang_up(connection)

    def server_bind(self) -> None:
        """As a TCP server does: HTTPServer would look up the host's name, which may wait for a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection; hangs up the oldest where too many are open."""
        self._open = [*(one for one in self._open if one.fileno() >= 0), request]
        if len(self._open) > CONNECTIONS_MAX:
            _hang_up(self._open.pop(0))
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Not a traceback on stderr, which is the server's own way."""
        log.debug("a request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request with a page of the server."""

    timeout = READ_LIMIT_S
    server_version = "arr-coc-stream"

    def version_string(self) -> str:
        return self.server_version

    def do_GET(self) -> None:
        self._send_page(with_body=True)

    def do_HEAD(self) -> None:
        self._send_page(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""

    def _send_page(self, *, with_body: bool) -> None:
        assert isinstance(self.server, HttpServer)
        page = self.server.pages(self.path.partition("?")[0])
        if page is None:
            page = Page(404, "text/plain; charset=utf-8", b"here are /metrics, /healthz and /readyz\n")
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _reason(error: OSError | OverflowError) -> str:
    if isinstance(error, OverflowError):
        return "it is not a valid port"
    if error.errno == errno.EADDRINUSE:
        return "another program uses that port; name another with --metrics-port"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return "this machine has no such address; 127.0.0.1 always works"
    return str(error.strerror)
