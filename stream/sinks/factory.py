"""Factory of the sinks that a configuration names: files, claimed before the run, and services for other programs."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack, nullcontext

from stream.config import Config
from stream.control import signals_held
from stream.events import Event
from stream.extension import SinkOpening, SinkType
from stream.monitor.health import RunMonitor
from stream.sinks.base import Sink
from stream.sinks.checks import check_outputs
from stream.sinks.types import caption_type, sinks_of


class MonitorSink(Sink):
    """Adapter that passes each event to the monitor; the first sink, because the others read the monitor."""

    def __init__(self, monitor: RunMonitor) -> None:
        self._monitor = monitor

    def write(self, event: Event) -> None:
        self._monitor.add(event)

    def close(self) -> None:
        pass


def open_sinks(
    config: Config,
    monitor: RunMonitor,
    *,
    camera: str = "",
    left_out: Collection[SinkType] = (),
    monitored: bool = False,
    resume: bool = False,
) -> list[Sink]:
    """Return the sinks of a run, files first.

    Args:
        config: Configuration of the run.
        monitor: State of the run; it is fed if a sink needs it.
        camera: Name of the run's camera, if there are several.
        left_out: Types that are opened elsewhere, such as those that several cameras share.
        monitored: Feed the monitor even if no sink needs it.
        resume: The run continues an earlier one, which wrote these files.

    Raises OutputError or ConfigError, with all sinks closed again, if a sink cannot be opened.
    """
    check_outputs(config)
    types = [sink for sink in sinks_of(config) if sink not in left_out]
    for sink in types:
        sink.require(config)
    outputs = [(caption_type(path), path) for path in config.output.paths]
    outputs += [(sink, config.value(sink.key)) for sink in types if sink.writes_file]
    outputs += [(sink, "") for sink in types if not sink.is_caption and not sink.writes_file]
    with ExitStack() as stack:
        sinks: list[Sink] = []
        for sink_type, path in outputs:
            opening = SinkOpening(config, monitor, path, camera, resume)
            # A signal between the making of a file and its registration would leave it behind. A service may wait for
            # another program, and a signal ends that.
            with signals_held() if sink_type.claims else nullcontext():
                sinks.append(sink_type.open_sink(opening))
                stack.callback(sinks[-1].close)
            monitored = monitored or not path
        stack.pop_all()
    return [MonitorSink(monitor), *sinks] if monitored else sinks
