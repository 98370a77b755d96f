"""Prometheus metrics of runs and of an answer server, with name, type, help and labels of each, and the health pages.

A scrape reads values from an existing snapshot; an event costs at most one observation in a histogram.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from arr_coc.types import NS_PER_S
from stream.answer.server_statistics import SERVING, ServerFigures, ServerStatistics
from stream.config import Config
from stream.control import RunControl
from stream.events import AnswerPoint, Event, FrameReady, Glance, Match, WatchesChanged, YesNoResult
from stream.extension import SharedOpening, SinkOpening
from stream.extensions.metrics.section import MetricsSection
from stream.extensions.metrics.server import HttpServer, Page
from stream.monitor.health import HealthReport, RunMonitor
from stream.monitor.schema import StatsMessage
from stream.monitor.statistics import resident_bytes
from stream.sinks.base import SharedSink, Sink

CAMERA = "camera"
"""Label of the metrics of a named camera."""

UNNAMED = ""
"""Name of a run without other cameras: its metrics have no label `camera`."""

FRAME_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
TTFT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)
TURN_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

RUN_HISTOGRAMS = (
    ("frame_latency_seconds", "From a frame's capture to its allocation.", FRAME_BUCKETS_S),
    ("ttft_seconds", "From a frame's capture to the answer's first token.", TTFT_BUCKETS_S),
    ("look_seconds", "From a frame's capture to its look for watches.", TTFT_BUCKETS_S),
    ("glance_seconds", "From sending an overview to where the model looked.", TTFT_BUCKETS_S),
)
SERVER_HISTOGRAMS = (
    ("server_turn_wait_seconds", "From a client's request for a turn to the turn.", TURN_BUCKETS_S),
    ("server_turn_seconds", "Time that a turn was served.", TURN_BUCKETS_S),
)

COUNTER = "counter"
GAUGE = "gauge"

Figure = tuple[str, str, str, "float | dict[str, Mapping[str, int]] | None"]
"""Type, name and help of a metric, and its value: None for none now; a mapping of values if the metric has a label."""


class MetricsServer(Collector):
    """HTTP server of /metrics, from one registry, /healthz and /readyz.

    Raises OutputError if the port is not available.
    """

    def __init__(self, host: str, port: int, histograms: Iterable[Histogram] = ()) -> None:
        disable_created_metrics()
        self._registry = CollectorRegistry(auto_describe=False)
        for collector in (*histograms, self):
            self._registry.register(collector)
        self._server = HttpServer(host, port, self._page)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the pages."""
        return self._server.address

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._server.close()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics except the histograms."""
        families: dict[str, Metric] = {}
        for labels, figures in self._figures():
            for kind, name, help_text, value in figures:
                if value is None:
                    continue
                family = families.setdefault(name, Metric(f"arr_coc_{name}", help_text, kind))
                if kind == COUNTER:
                    sample = f"{family.name}_total"
                else:
                    sample = family.name
                if isinstance(value, dict):
                    for label, values in value.items():
                        for key, number in values.items():
                            family.add_sample(sample, {**labels, label: key}, number)
                else:
                    family.add_sample(sample, labels, value)
        yield from families.values()

    def _page(self, path: str) -> Page | None:
        if path == "/metrics":
            return Page(200, CONTENT_TYPE_LATEST, generate_latest(self._registry))
        if path not in ("/healthz", "/readyz"):
            return None
        report, healthy, ready = self._health()
        good = healthy if path == "/healthz" else ready
        return Page(200 if good else 503, "application/json", msgspec.json.encode(report) + b"\n")

    @abstractmethod
    def _figures(self) -> Iterator[tuple[dict[str, str], Iterable[Figure]]]:
        """Yield the current labels and figures."""

    @abstractmethod
    def _health(self) -> tuple[object, bool, bool]:
        """Return the report of the health pages, and whether /healthz and /readyz return 200."""


class RunMetrics(MetricsServer):
    """Metrics server of one run, under the name UNNAMED, or of several cameras.

    Args:
        monitors: Monitor of each run, by name. It must receive each event before the sink of its run.
        refused: Reason by name of each camera that was not started.
        processes: Returns the processes that belong to no camera.
    """

    def __init__(
        self,
        host: str,
        port: int,
        monitors: Mapping[str, RunMonitor],
        refused: Mapping[str, str] | None = None,
        processes: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.monitors = monitors
        self.histograms = _histograms(RUN_HISTOGRAMS, () if UNNAMED in monitors else (CAMERA,))
        self.sinks = {name: MetricsSink(self, name) for name in monitors}
        self._refused = {
            name: HealthReport("ended", reason, False, None, 0, 0) for name, reason in (refused or {}).items()
        }
        self._processes = processes
        super().__init__(host, port, self.histograms)

    def _figures(self) -> Iterator[tuple[dict[str, str], Iterable[Figure]]]:
        for name, monitor in self.monitors.items():
            figures = _run_figures(monitor.stats(), monitor.health(), self.sinks[name])
            yield {CAMERA: name} if name else {}, figures
        for name in self._refused:
            yield {CAMERA: name}, [_healthy(False)]
        yield {}, [_memory(resident_bytes(self._processes()))]

    def _health(self) -> tuple[object, bool, bool]:
        cameras = {**{name: monitor.health() for name, monitor in self.monitors.items()}, **self._refused}
        healthy = [report.healthy for report in cameras.values()]
        ready = all(healthy) and all(report.ready for report in cameras.values())
        if all(healthy):
            status = "ok"
        else:
            status = "degraded" if any(healthy) else "failing"
        return cameras.get(UNNAMED, {"status": status, "cameras": cameras}), any(healthy), ready


class MetricsSink(Sink):
    """Sink that observes the durations of one run. `holds` has the newest verdict of each watch."""

    def __init__(self, metrics: RunMetrics, name: str) -> None:
        self.metrics = metrics
        self.holds: dict[str, str | None] = {}
        self.matches: Counter[str] = Counter()
        self._latency, self._ttft, self._yes_no, self._glance = (
            histogram.labels(name) if name else histogram for histogram in metrics.histograms
        )

    def write(self, event: Event) -> None:
        if isinstance(event, FrameReady):
            self._latency.observe(max(0, event.ready_ns - event.capture_ns) / 1e9)
        elif isinstance(event, AnswerPoint) and event.timing is not None:
            self._ttft.observe(event.timing.ttft_ms / 1e3)
        elif isinstance(event, Glance) and event.timing is not None:
            self._glance.observe(event.timing.total_ms / 1e3)
        elif isinstance(event, YesNoResult) and event.timing is not None:
            self.holds[event.watch] = event.holds
            self._yes_no.observe(event.timing.total_ms / 1e3)
        elif isinstance(event, Match):
            self.matches[event.watch] += 1
        elif isinstance(event, WatchesChanged):
            present = {watch.name for watch in event.watches}
            self.holds = {name: holds for name, holds in self.holds.items() if name in present}
            self.matches = Counter({name: count for name, count in self.matches.items() if name in present})

    def close(self) -> None:
        if UNNAMED in self.metrics.monitors:  # the pages of several cameras outlive each of them
            self.metrics.close()


class SharedMetrics(SharedSink):
    """Metrics of several cameras, at the port of the first that names one."""

    def __init__(self, opening: SharedOpening) -> None:
        sections = map(MetricsSection.of, opening.configs.values())
        section = next(section for section in sections if section.port is not None)
        assert section.port is not None
        self._metrics = RunMetrics(section.host, section.port, opening.monitors, opening.refused, opening.processes)

    def part(self, camera: str, config: Config, monitor: RunMonitor) -> Sink:
        """Return the sink that observes a camera's run."""
        return self._metrics.sinks[camera]

    def close(self) -> None:
        self._metrics.close()


def open_sink(opening: SinkOpening) -> MetricsSink:
    """Serve the metrics of one run at `metrics.port` until the sink is closed."""
    section = MetricsSection.of(opening.config)
    assert section.port is not None
    return RunMetrics(section.host, section.port, {UNNAMED: opening.monitor}).sinks[UNNAMED]


class ServerMetrics(MetricsServer):
    """Metrics server of one answer server, whose control is `control`.

    The status is that of the statistics, "draining" if no more turns are granted, or "stalled" after a long silence.
    """

    def __init__(self, config: Config, statistics: ServerStatistics, control: RunControl) -> None:
        section = MetricsSection.of(config)
        assert section.port is not None
        self._statistics = statistics
        self._control = control
        self._silence_limit_s = config.pipeline.timeout_s
        self._histograms = _histograms(SERVER_HISTOGRAMS)
        statistics.on_wait, statistics.on_turn = (histogram.observe for histogram in self._histograms)
        super().__init__(section.host, section.port)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from super().collect()
        for family in (family for histogram in self._histograms for family in histogram.collect()):
            for sample in family.samples:  # the bounds of these two have always been exposed as 1, not 1.0
                if bound := sample.labels.get("le"):
                    sample.labels["le"] = bound.removesuffix(".0")
            yield family

    def _figures(self) -> Iterator[tuple[dict[str, str], Iterable[Figure]]]:
        yield {}, _server_figures(self._statistics.figures(), self._health()[2])

    def _health(self) -> tuple[object, bool, bool]:
        figures = self._statistics.figures()
        status, reason = self._statistics.status(self._silence_limit_s, draining=self._control.ending)
        ready = status == SERVING
        counts = {"clients": figures.clients, "slots": figures.slots, "turns_waiting": figures.waiting}
        return {"status": status, "reason": reason, "ready": ready, **counts}, status != "stalled", ready


def _histograms(
    declarations: Iterable[tuple[str, str, tuple[float, ...]]], labels: tuple[str, ...] = ()
) -> list[Histogram]:
    return [
        Histogram(f"arr_coc_{name}", help_text, labels, buckets=buckets, registry=None)
        for name, help_text, buckets in declarations
    ]


def _run_figures(stats: StatsMessage, health: HealthReport, sink: MetricsSink) -> Iterator[Figure]:
    yield COUNTER, "frames", "Frames allocated.", stats.frames
    yield COUNTER, "answers", "Whole answers.", stats.answers
    yield COUNTER, "unchanged", "Answers without news, which were not shown.", stats.unchanged
    yield COUNTER, "glances", "Looks at an overview before an answer.", stats.glances
    yield COUNTER, "glance_tokens", "Visual tokens of glances.", stats.glance_tokens
    if (memory := stats.memory) is not None:
        yield COUNTER, "groups", "Groups of pictures that began, by reason.", {"reason": memory.groups}
        yield COUNTER, "appended_tokens", "Visual tokens that answers appended to groups.", memory.appended_tokens
        yield COUNTER, "kept_tokens", "Visual tokens that answers were shown again at no cost.", memory.kept_tokens
        yield COUNTER, "superseded_tokens", "Visual tokens that left the group.", memory.superseded_tokens
        if (idle := memory.idle) is not None:
            yield COUNTER, "idle_tokens", "Visual tokens that the model read between answers.", idle.tokens
            yield COUNTER, "idle_seconds", "Time of the model for that.", idle.seconds
            yield COUNTER, "rebuilt_groups", "Groups of pictures written anew between answers.", idle.rebuilt
    yield COUNTER, "cuts", "Scene cuts.", stats.cuts
    yield COUNTER, "shadow_checks", "Answers compared with those of all tokens.", stats.checks
    yield COUNTER, "shadow_same", "Of these, answers that were the same.", stats.checks_same
    yield COUNTER, "shadow_differing", "Of these, answers that counted as different.", stats.checks_differing
    yield COUNTER, "budget_raises", "Raises of the budget by shadow checks.", stats.budget_raises
    yield COUNTER, "budget_lowers", "Falls of the budget by shadow checks.", stats.budget_lowers
    yield COUNTER, "skipped", "Parts of the source that could not be used.", stats.skipped
    yield COUNTER, "outages", "Times that a live source was lost.", stats.outages
    yield COUNTER, "outage_seconds", "Time that the source was lost, in outages that are over.", stats.outages_s
    yield COUNTER, "deadline_misses", "Frames later than one source period.", stats.deadline_misses or 0
    yield COUNTER, "dropped", "Dropped, by queue and cause.", {"queue": stats.dropped}
    yield COUNTER, "restarts", "Processes started again.", {"process": stats.restarts}
    yield GAUGE, "uptime_seconds", "Since the run was started.", stats.uptime_s
    yield GAUGE, "fps", "Frames a second, over the last two seconds.", stats.fps
    yield GAUGE, "tokens", "Visual tokens of the newest frame.", stats.tokens
    yield GAUGE, "tiles", "Tiles of the newest frame.", stats.tiles
    yield GAUGE, "dirty_share", "Share of tiles that changed, over the last two seconds.", stats.dirty_share
    yield GAUGE, "budget", "Tokens per frame that a latency target or shadow checks set.", stats.budget
    yield GAUGE, "shadow_words_share", "Mean share of equal words in compared answers.", stats.checks_words
    target_s, p95_s = (None if ms is None else ms / 1e3 for ms in (stats.target_ms, stats.ttft_p95_ms))
    yield GAUGE, "ttft_target_seconds", "Target for p95 of the time to the first token.", target_s
    yield GAUGE, "ttft_p95_seconds", "From a frame's capture to the first token, over the last 60 answers.", p95_s
    if stats.jitter is not None:
        over = "over the last ten seconds"
        smoothed_s = stats.jitter.interarrival_ms / 1e3
        std_s = stats.jitter.interval_std_ms / 1e3
        yield GAUGE, "jitter_interarrival_seconds", f"RFC 3550's smoothed estimate, {over}.", smoothed_s
        yield GAUGE, "jitter_interval_std_seconds", f"Standard deviation of output gaps minus PTS gaps, {over}.", std_s
    if sink.holds:
        states = {name: int(holds == "yes") for name, holds in list(sink.holds.items()) if holds is not None}
        yield GAUGE, "watched_for", "1 while the answer to a watch is yes.", {"watch": states}
        yield COUNTER, "matches", "Matches of watches.", {"watch": dict(sink.matches)}
    yield GAUGE, "outage_active", "1 while a live source is lost.", float(health.status == "outage")
    yield _healthy(health.healthy)
    yield _memory(stats.memory_bytes)


def _healthy(healthy: bool) -> Figure:
    return GAUGE, "healthy", "1 while /healthz returns 200.", float(healthy)


def _memory(memory_bytes: Mapping[str, int]) -> Figure:
    return GAUGE, "resident_memory_bytes", "Resident memory.", {"process": memory_bytes}


def _server_figures(figures: ServerFigures, ready: bool) -> Iterator[Figure]:
    totals = figures.totals
    over = "over the last minute"
    yield COUNTER, "server_answers", "Whole answers.", totals.answers
    yield COUNTER, "server_looks", "Looks for watches.", totals.checks
    yield COUNTER, "server_glances", "Looks at an overview before an answer.", totals.glances
    yield COUNTER, "server_failed", "Turns that came to nothing.", totals.failed
    yield COUNTER, "server_text_tokens", "Text tokens of answers.", totals.text_tokens
    yield COUNTER, "server_visual_tokens", "Visual tokens that were read.", totals.visual_tokens
    if figures.groups or totals.evictions:
        yield COUNTER, "server_groups_evicted", "Groups of pictures that lost their slot.", totals.evictions
        yield GAUGE, "server_groups", "Groups of pictures that are kept.", figures.groups
        yield GAUGE, "server_group_tokens", "Visual tokens of kept groups.", figures.group_tokens
        yield COUNTER, "server_idle_tokens", "Visual tokens read between answers.", totals.idle_tokens
        yield COUNTER, "server_rebuilt_groups", "Groups of pictures written anew between answers.", totals.rebuilt
        yield GAUGE, "server_idle_share", "Share of idle work in the last minute.", figures.idle_share
    yield COUNTER, "server_busy_seconds", "Time in which a turn was served.", totals.busy_ns / NS_PER_S
    yield GAUGE, "server_uptime_seconds", "Since the server was started.", figures.uptime_s
    yield GAUGE, "server_ready", "1 while /readyz returns 200.", float(ready)
    yield GAUGE, "server_clients", "Clients that are connected.", figures.clients
    yield GAUGE, "server_slots", "Turns that can be served at once.", figures.slots
    yield GAUGE, "server_slots_busy", "Turns that are being served.", figures.serving
    yield GAUGE, "server_turns_waiting", "Clients that wait for a turn.", figures.waiting
    yield GAUGE, "server_turn_wait_p95_seconds", f"p95 of the wait for a turn, {over}.", figures.wait_p95_s
    yield GAUGE, "server_busy_share", f"Share of time in which a turn was served, {over}.", figures.busy_share
    yield GAUGE, "server_text_tokens_per_second", f"Text tokens of answers, {over}.", figures.text_tokens_per_s
    yield _memory(resident_bytes({"answers": os.getpid()}))
