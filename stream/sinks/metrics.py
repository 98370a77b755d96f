"""Prometheus metrics and health of a run: /metrics, /healthz and /readyz."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from stream.config import Config
from stream.events import Answer, Event, FrameReady, Glance, YesNoResult
from stream.monitor.health import HealthReport, RunMonitor
from stream.monitor.schema import StatsMessage
from stream.sinks.base import Sink
from stream.sinks.metrics_server import (
    Figure,
    HttpServer,
    PageHealth,
    counters,
    gauges,
    labelled,
    memory_family,
    monitoring_pages,
)

FRAME_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
TTFT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)


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
        self._server = HttpServer(config.output.metrics_host, port, monitoring_pages(self._registry, self._health))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which it is served."""
        return self._server.address

    def write(self, event: Event) -> None:
        self._collector.add(event)

    def close(self) -> None:
        self._server.close()

    def _health(self) -> PageHealth:
        health = self._monitor.health()
        return PageHealth(health, health.healthy, health.healthy and health.ready)


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
        yield from counters("arr_coc", _counters(stats))
        yield from gauges("arr_coc", (*_gauges(stats), *self._states(health)))
        yield labelled(CounterMetricFamily, "arr_coc_dropped", "Dropped, by queue and cause.", "queue", stats.dropped)
        yield labelled(CounterMetricFamily, "arr_coc_restarts", "Processes started again.", "process", stats.restarts)
        yield memory_family(stats.memory_bytes)

    def _states(self, health: HealthReport) -> Iterator[Figure]:
        verdict = None if self._holds is None else float(self._holds == "yes")
        yield "watched_for", "1 while the answer to the standing query is yes.", verdict
        yield "outage_active", "1 while a live source is lost.", float(health.status == "outage")
        yield "healthy", "1 while /healthz returns 200.", float(health.healthy)


def _counters(stats: StatsMessage) -> Iterator[Figure]:
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


def _gauges(stats: StatsMessage) -> Iterator[Figure]:
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
