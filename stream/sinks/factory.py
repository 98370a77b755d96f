"""Factory of the sinks that a configuration names: files, claimed before the run, and services for other programs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from stream.config import Config, OutputConfig
from stream.events import Event
from stream.monitor.health import RunMonitor
from stream.sinks.base import Sink
from stream.sinks.checks import check_outputs
from stream.sinks.on_match import MatchCommandSink, commands_of
from stream.sinks.types import CLIPS, FILE_SINKS, SERVICES, FileOpening, ServiceOpening, caption_type, sinks_of

if TYPE_CHECKING:
    from stream.sinks.heatmap import FramePictures
    from stream.web.application import PageCamera


class MonitorSink(Sink):
    """Adapter that passes each event to the monitor; the first sink, because the others read the monitor."""

    def __init__(self, monitor: RunMonitor) -> None:
        self._monitor = monitor

    def write(self, event: Event) -> None:
        self._monitor.add(event)

    def close(self) -> None:
        pass


def open_services(
    config: Config, page: PageCamera | None = None, monitor: RunMonitor | None = None, *, resume: bool = False
) -> tuple[RunMonitor, list[Sink]]:
    """Return the monitor of a run and the sinks that report it; no sinks if the configuration names none.

    Args:
        config: Configuration of the run.
        page: Place of the run in a page of several cameras.
        monitor: Monitor that other readers share; it is fed even if no sink needs it.
        resume: The run continues an earlier one.

    Raises OutputError or ConfigError, with all sinks closed again, if a sink cannot be opened.
    """
    is_shared = monitor is not None
    monitor = monitor or RunMonitor(config)
    at = ServiceOpening(config, monitor, page, resume)
    with ExitStack() as stack:
        sinks = [_register(stack, service.open(at)) for service in SERVICES if service.applies(config.output)]
        if commands := commands_of(config):
            sinks.append(_register(stack, MatchCommandSink(commands, limit_s=config.output.on_match_limit_s)))
        stack.pop_all()
    return monitor, [MonitorSink(monitor), *sinks] if sinks or is_shared else []


def open_sinks(
    config: OutputConfig, source: str, find_run: Callable[[], FramePictures], *, resume: bool = False
) -> list[Sink]:
    """Return the file sinks of a run.

    Args:
        config: Outputs of the run.
        source: Address of its source, which no output may overwrite.
        find_run: Returns the run, once there are events.
        resume: The run continues an earlier one, which wrote these files.

    Raises:
        OutputError: If a file cannot be written; all sinks are closed again.
    """
    check_outputs(config, source)
    for sink in sinks_of(config):
        sink.require(config)
    files = [(path, caption_type(path)) for path in config.paths]
    files += [(getattr(config, file.key), file) for file in (*FILE_SINKS, CLIPS) if file.applies(config)]
    with ExitStack() as stack:
        sinks = [
            _register(stack, file.open(FileOpening(path, config, source, find_run, resume))) for path, file in files
        ]
        stack.pop_all()
    return sinks


def _register(stack: ExitStack, sink: Sink) -> Sink:
    stack.callback(sink.close)
    return sink
