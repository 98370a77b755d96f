"""Sinks that a configuration asks for: files, claimed before the run, and services for other programs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

from stream.config import BAG_SUFFIX, HLS_SUFFIX, MCAP_SUFFIX, RERUN_SUFFIX, STDOUT, Config, OutputConfig
from stream.events import Event
from stream.monitor.health import RunMonitor
from stream.sinks.base import Sink
from stream.sinks.captions import CaptionSink, OverlaySink
from stream.sinks.output_file import ExplanationSink, JsonlSink, check_outputs
from stream.sinks.rerun.address import ViewerAddress, check_rerun
from stream.sources.address import is_live_address, redacted

if TYPE_CHECKING:
    from stream.sinks.heatmap import FramePictures
    from stream.web.application import PageCamera


class MonitorSink(Sink):
    """Feeds the monitor that the other outputs ask; comes before them."""

    def __init__(self, monitor: RunMonitor) -> None:
        self._monitor = monitor

    def write(self, event: Event) -> None:
        self._monitor.add(event)

    def close(self) -> None:
        pass


def open_services(
    config: Config, page: PageCamera | None = None, monitor: RunMonitor | None = None
) -> tuple[RunMonitor, list[Sink]]:
    """The monitor of a run, and the sinks that report it; no sinks if the configuration names none.

    Args:
        config: Configuration of the run.
        page: Place of the run in a page of several cameras.
        monitor: Monitor that others ask as well; it is fed in any case.

    Raises OutputError or ConfigError, having let go of everything, where one cannot be opened.
    """
    shared, monitor = monitor is not None, monitor or RunMonitor(config)
    with ExitStack() as opened:
        sinks = [_opened(opened, make(config, monitor)) for make in _services(config, page)]
        opened.pop_all()
    return monitor, [MonitorSink(monitor), *sinks] if sinks or shared else []


def _services(config: Config, page: PageCamera | None) -> list[Callable[[Config, RunMonitor], Sink]]:
    """The sinks that the configuration names; their libraries are only imported where there are any."""
    services: list[Callable[[Config, RunMonitor], Sink]] = []
    if config.output.publish is not None:
        from stream.sinks.services import PublishSink

        services.append(PublishSink)
    if config.output.control is not None:
        from stream.sinks.services import ControlSink

        services.append(ControlSink)
    if config.output.metrics_port is not None:
        from stream.sinks.metrics import open_metrics

        services.append(open_metrics)
    if config.output.web is not None:
        from stream.sinks.web import WebSink

        services.append(partial(WebSink, camera=page))
    if config.output.mqtt is not None:
        from stream.sinks.mqtt import MqttSink

        services.append(MqttSink)
    if config.output.foxglove is not None:
        from stream.sinks.robotics.foxglove_server import FoxgloveSink

        services.append(lambda config, monitor: FoxgloveSink(config))
    if config.output.webhook is not None:
        from stream.sinks.webhook import WebhookSink

        url = config.output.webhook
        services.append(lambda config, monitor: WebhookSink(url))
    if config.output.otlp is not None:
        from stream.sinks.otlp.sink import OtlpSink

        services.append(lambda config, monitor: OtlpSink(config))
    if config.output.rerun is not None:
        from stream.sinks.rerun.viewer import RerunViewerSink

        viewer = ViewerAddress.of(config.output.rerun)
        services.append(lambda config, monitor: RerunViewerSink(viewer, redacted(config.source)))
    return services


def open_sinks(
    config: OutputConfig, source: str, find_run: Callable[[], FramePictures], *, resume: bool = False
) -> list[Sink]:
    """The file sinks of a run; `resume`: of one that continues another, whose captions are in the files.

    `find_run` gives the run once there are events.

    Raises OutputError, having let go of everything, where one cannot be written.
    """
    check_outputs(config, source)
    check_rerun(config)
    with ExitStack() as opened:
        sinks = [_opened(opened, _path_sink(path, config, source, resume)) for path in config.paths]
        if config.heatmap is not None:
            from stream.sinks.heatmap import HeatmapSink

            scene = source if config.heatmap_truth else ""
            sinks.append(_opened(opened, HeatmapSink(config.heatmap, find_run, config.heatmap_layers, scene)))
        if config.why is not None:
            sinks.append(_opened(opened, ExplanationSink(config.why)))
        if config.overlay is not None:
            sinks.append(_opened(opened, OverlaySink(config.overlay)))
        opened.pop_all()
    return sinks


def _opened(opened: ExitStack, sink: Sink) -> Sink:
    opened.callback(sink.close)
    return sink


def _path_sink(path: str, config: OutputConfig, source: str, resume: bool) -> Sink:
    suffix = PurePath(path).suffix.lower()
    if suffix == HLS_SUFFIX:
        from stream.sinks.hls.sink import HlsSink

        return HlsSink(path, config.hls, live=is_live_address(source))
    if suffix == MCAP_SUFFIX:
        from stream.sinks.robotics.mcap_file import McapSink

        return McapSink(path, config, resume=resume)
    if suffix == BAG_SUFFIX:
        from stream.sinks.robotics.rosbag import RosbagSink

        return RosbagSink(path, config)
    if suffix == RERUN_SUFFIX:
        from stream.sinks.rerun.file import RerunFileSink

        return RerunFileSink(path, redacted(source))
    if path == STDOUT or suffix == ".jsonl":
        return JsonlSink(path, timing=config.timing, resume=resume)
    return CaptionSink(path, resume=resume)
