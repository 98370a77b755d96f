"""The outputs for other programs, which look at a run while it goes on: published messages, requests, metrics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from stream.config import Config
from stream.events import Event
from stream.monitor.health import RunMonitor
from stream.sinks.base import Sink


class MonitorSink(Sink):
    """Feeds the monitor that the other outputs ask; comes before them."""

    def __init__(self, monitor: RunMonitor) -> None:
        self._monitor = monitor

    def write(self, event: Event) -> None:
        self._monitor.add(event)

    def close(self) -> None:
        pass


def open_listeners(config: Config) -> tuple[RunMonitor, list[Sink]]:
    """The monitor of a run, and the sinks that tell of it; none where the configuration names none.

    Raises OutputError or ConfigError, having let go of everything, where one cannot be opened.
    """
    monitor = RunMonitor(config)
    with ExitStack() as opened:
        sinks: list[Sink] = []
        for make in _wanted(config):
            sinks.append(make(config, monitor))
            opened.callback(sinks[-1].close)
        opened.pop_all()
    return monitor, [MonitorSink(monitor), *sinks] if sinks else []


def _wanted(config: Config) -> list[Callable[[Config, RunMonitor], Sink]]:
    """The sinks that the configuration names; their libraries are only imported where there are any."""
    wanted: list[Callable[[Config, RunMonitor], Sink]] = []
    if config.output.publish is not None:
        from stream.sinks.publish import PublishSink

        wanted.append(PublishSink)
    if config.output.control is not None:
        from stream.sinks.control import ControlSink

        wanted.append(ControlSink)
    if config.output.metrics_port is not None:
        from stream.sinks.metrics import MetricsSink

        wanted.append(MetricsSink)
    return wanted
