"""Prometheus metrics and health of `serve-answers`: /metrics, /healthz and /readyz."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from arr_coc.types import NS_PER_S
from stream.answer.server_statistics import SERVING, ServerFigures, ServerStatistics
from stream.config import Config
from stream.control import RunControl
from stream.monitor.statistics import resident_bytes
from stream.sinks.metrics_server import (
    Figure,
    HttpServer,
    PageHealth,
    counters,
    gauges,
    memory_family,
    monitoring_pages,
)

DRAINING, STALLED = "draining", "stalled"
"""States of a server beside LOADING and SERVING: it grants no more turns; its model has said nothing for too long."""


class ServerHealth(msgspec.Struct, frozen=True):
    """Health of an answer server, as the pages say it.

    `status` is "loading", "ok", "draining" or "stalled", which has a `reason`. `ready`: new clients are served.
    """

    status: str
    reason: str | None
    ready: bool
    clients: int
    slots: int
    turns_waiting: int

    @property
    def healthy(self) -> bool:
        """True unless the server should be restarted."""
        return self.status != STALLED


class ServerMetrics:
    """Serves the pages of one answer server, until it is closed. `control` is the server's.

    Raises OutputError where the port cannot be had.
    """

    def __init__(self, config: Config, statistics: ServerStatistics, control: RunControl) -> None:
        port = config.output.metrics_port
        assert port is not None
        self._statistics = statistics
        self._control = control
        self._silence_limit_s = config.pipeline.timeout_s
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(ServerCollector(self))
        self._server = HttpServer(config.output.metrics_host, port, monitoring_pages(self._registry, self._page_health))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the pages."""
        return self._server.address

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def figures(self) -> ServerFigures:
        """Return the figures of this moment."""
        return self._statistics.figures()

    def health(self, figures: ServerFigures) -> ServerHealth:
        """Return the health of the server that has these figures."""
        status, reason = self._statistics.state, None
        if status == SERVING and figures.silent_s > self._silence_limit_s:
            status, reason = STALLED, f"the model has said nothing for {figures.silent_s:.0f} s"
        elif status == SERVING and self._control.ending:
            status = DRAINING
        return ServerHealth(
            status, reason, status == SERVING, figures.clients, figures.slots, turns_waiting=figures.waiting
        )

    def _page_health(self) -> PageHealth:
        health = self.health(self.figures())
        return PageHealth(health, health.healthy, health.ready)


class ServerCollector(Collector):
    """Metrics of an answer server, read anew for every scrape."""

    def __init__(self, server: ServerMetrics) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Return all of them."""
        figures = self._server.figures()
        health = self._server.health(figures)
        yield from counters("arr_coc_server", _counters(figures))
        yield from gauges("arr_coc_server", _gauges(figures, health))
        for name, help_text, (buckets, sum_s) in (
            ("turn_wait_seconds", "From a client's request for a turn to the turn.", figures.waits),
            ("turn_seconds", "Time that a turn was served.", figures.turns),
        ):
            yield HistogramMetricFamily(f"arr_coc_server_{name}", help_text, buckets=buckets, sum_value=sum_s)
        yield memory_family(resident_bytes({"answers": os.getpid()}))


def _counters(figures: ServerFigures) -> Iterator[Figure]:
    totals = figures.totals
    yield "answers", "Whole answers.", totals.answers
    yield "looks", "Looks at a standing question.", totals.checks
    yield "glances", "Looks at an overview before an answer.", totals.glances
    yield "failed", "Turns that came to nothing.", totals.failed
    yield "text_tokens", "Text tokens of answers.", totals.text_tokens
    yield "visual_tokens", "Visual tokens that were read.", totals.visual_tokens
    yield "busy_seconds", "Time in which a turn was served.", totals.busy_ns / NS_PER_S


def _gauges(figures: ServerFigures, health: ServerHealth) -> Iterator[Figure]:
    over = "over the last minute"
    yield "uptime_seconds", "Since the server was started.", figures.uptime_s
    yield "ready", "1 while /readyz returns 200.", float(health.ready)
    yield "clients", "Clients that are connected.", figures.clients
    yield "slots", "Turns that can be served at once.", figures.slots
    yield "slots_busy", "Turns that are being served.", figures.serving
    yield "turns_waiting", "Clients that wait for a turn.", figures.waiting
    yield "turn_wait_p95_seconds", f"p95 of the wait for a turn, {over}.", figures.wait_p95_s
    yield "busy_share", f"Share of time in which a turn was served, {over}.", figures.busy_share
    yield "text_tokens_per_second", f"Text tokens of answers, {over}.", figures.text_tokens_per_s
