"""Prometheus metrics and health of several cameras at one port: each run's, with the camera's name as a label."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from stream.events import Event
from stream.fleet.cameras import NamedCamera
from stream.monitor.health import HealthReport, RunHandle, RunMonitor
from stream.monitor.statistics import resident_bytes
from stream.sinks.base import Sink
from stream.sinks.metrics import RunCollector
from stream.sinks.metrics_server import MEMORY, HttpServer, PageHealth, monitoring_pages

CAMERA = "camera"
"""Label of a camera's metrics."""


class FleetMetrics(Collector):
    """Serves /metrics, /healthz and /readyz for several cameras.

    `refused` tells why a camera is not among them, by name; `processes` returns the processes that are no camera's own.
    Raises OutputError where the port cannot be had.
    """

    def __init__(
        self,
        host: str,
        port: int,
        cameras: Sequence[NamedCamera],
        refused: Mapping[str, str],
        processes: Callable[[], Mapping[str, int]],
    ) -> None:
        disable_created_metrics()
        self._processes = processes
        self._monitors = {camera.name: RunMonitor(camera.config) for camera in cameras}
        self._registries = {name: CollectorRegistry(auto_describe=False) for name in self._monitors}
        self._collectors = {
            name: RunCollector(monitor, self._registries[name]) for name, monitor in self._monitors.items()
        }
        self._refused = {name: HealthReport("ended", reason, False, None, 0, 0) for name, reason in refused.items()}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._server = HttpServer(host, port, monitoring_pages(self._registry, self._page_health))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which it is served."""
        return self._server.address

    def sink(self, name: str) -> Sink:
        """Return the sink of one camera."""
        return _CameraMetrics(self._monitors[name], self._collectors[name])

    def follow(self, name: str, run: RunHandle) -> None:
        """The run of a camera is made."""
        self._monitors[name].follow(run)

    def unreachable(self, name: str, reason: str) -> None:
        """The source of a camera cannot be opened yet."""
        self._monitors[name].unreachable(reason)

    def failed(self, name: str, reason: str) -> None:
        """A camera has ended without a summary."""
        self._monitors[name].fail(reason)

    def close(self) -> None:
        """Stop serving; may be called twice."""
        self._server.close()

    def collect(self) -> Iterator[Metric]:
        """The metrics of every camera, with its name, and the memory of the other processes."""
        families: dict[str, Metric] = {}
        for name, registry in self._registries.items():
            for metric in registry.collect():
                family = families.get(metric.name)
                if family is None:
                    family = families[metric.name] = Metric(metric.name, metric.documentation, metric.type)
                family.samples += [sample._replace(labels={CAMERA: name, **sample.labels}) for sample in metric.samples]
        for name in self._refused:
            families["arr_coc_healthy"].add_sample("arr_coc_healthy", {CAMERA: name}, 0.0)
        for process, size in resident_bytes(self._processes()).items():
            families[MEMORY].add_sample(MEMORY, {"process": process}, float(size))
        yield from families.values()

    def health(self) -> dict[str, HealthReport]:
        """Return the health of every camera."""
        return {**{name: monitor.health() for name, monitor in self._monitors.items()}, **self._refused}

    def _page_health(self) -> PageHealth:
        cameras = self.health()
        well = [report.healthy for report in cameras.values()]
        status = "ok" if all(well) else "degraded" if any(well) else "failing"
        ready = all(well) and all(one.ready for one in cameras.values())
        return PageHealth({"status": status, "cameras": cameras}, any(well), ready)


class _CameraMetrics(Sink):
    """Feeds the metrics of one camera."""

    def __init__(self, monitor: RunMonitor, collector: RunCollector) -> None:
        self._monitor = monitor
        self._collector = collector

    def write(self, event: Event) -> None:
        self._monitor.add(event)
        self._collector.add(event)

    def close(self) -> None:
        """The figures stay as they are."""
