"""The outputs for other programs, which look at a run while it goes on: published messages, requests, metrics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from stream.config import Config
from stream.events import Event
from stream.monitor.health import Vitals
from stream.sinks.base import Sink


class VitalsSink(Sink):
    """Keeps the vitals that the other outputs tell of; comes before them."""

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals

    def write(self, event: Event) -> None:
        self._vitals.add(event)

    def close(self) -> None:
        pass


def open_listeners(config: Config) -> tuple[Vitals, list[Sink]]:
    """What is known of a run, and the sinks that tell of it; none where the configuration names none.

    Raises OutputError or ConfigError, having let go of everything, where one cannot be opened.
    """
    vitals = Vitals(config)
    with ExitStack() as opened:
        sinks: list[Sink] = []
        for make in _wanted(config):
            sinks.append(make(config, vitals))
            opened.callback(sinks[-1].close)
        opened.pop_all()
    return vitals, [VitalsSink(vitals), *sinks] if sinks else []


def _wanted(config: Config) -> list[Callable[[Config, Vitals], Sink]]:
    """The sinks that the configuration names; their libraries are only imported where there are any."""
    wanted: list[Callable[[Config, Vitals], Sink]] = []
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
