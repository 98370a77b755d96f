"""Registry of sink types: suffixes or key, library, check, and function that opens the sink and imports its module.

Help, checks, doctor, the documents and `stream.sinks.factory` read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from stream.config import BAG_SUFFIX, HLS_SUFFIX, MCAP_SUFFIX, RERUN_SUFFIX, STDOUT, Config, OutputConfig, needs_keys
from stream.errors import ConfigError
from stream.options.extra import FOXGLOVE, MQTT, OTLP, RERUN, ROS2, WEB, Extra
from stream.sinks.otlp.endpoint import traces_url
from stream.sinks.rerun.address import ViewerAddress
from stream.sinks.robotics.address import foxglove_address
from stream.sources.address import is_live_address, redacted

if TYPE_CHECKING:
    from stream.monitor.health import RunMonitor
    from stream.sinks.base import Sink
    from stream.sinks.heatmap import FramePictures
    from stream.web.application import PageCamera


@dataclass(frozen=True, slots=True)
class FileOpening:
    """Arguments of a sink that writes a file; `resume`: the run continues an earlier one."""

    path: str
    output: OutputConfig
    source: str
    find_run: Callable[[], FramePictures]
    resume: bool = False


@dataclass(frozen=True, slots=True)
class ServiceOpening:
    """Arguments of a sink for other programs; `page` shows the run, as a camera of a shared page; `resume`: the run
    continues an earlier one."""

    config: Config
    monitor: RunMonitor
    page: PageCamera | None = None
    resume: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkType:
    """Type of sink: for paths of `output.paths` with its suffixes, or for the key `output.KEY`."""

    open: Callable[[Any], Sink]
    """Import the sink's module and open the sink, from a FileOpening or ServiceOpening."""
    help: str = ""
    """Description of the output in the documents."""
    suffixes: tuple[str, ...] = ()
    key: str = ""
    extra: Extra | None = None
    check: Callable[[Config], object] | None = None
    """Raise ConfigError for a configuration that would fail at once. Imports nothing heavy."""
    pictures: Literal["none", "asked", "every"] = "none"
    """Pictures for the sink: none, of frames with an answer, or also every few frames (`output.pictures_every`)."""
    pictures_key: str = ""
    """Key of `output` that turns these pictures off."""

    def applies(self, output: OutputConfig) -> bool:
        """Return True if the configuration has an output of this type."""
        if self.key:
            return getattr(output, self.key) is not None
        return any(self.takes(path) for path in output.paths)

    def takes(self, path: str) -> bool:
        """Return True if an output of this path is of this type."""
        return path != STDOUT and PurePath(path).suffix.lower() in self.suffixes

    def require(self, output: OutputConfig) -> None:
        """Raise ConfigError if the configuration has an output of this type and its library is missing."""
        if self.extra is not None and self.applies(output):
            path = next((f"-o {PurePath(path).name}" for path in output.paths if self.takes(path)), "")
            self.extra.require(path or f"--{self.key}")


def caption_type(path: str) -> SinkType:
    """Return the type of a caption output that `check_outputs` has accepted."""
    return next((sink for sink in CAPTION_SINKS if sink.takes(path)), JSON_LINES)


def sinks_of(output: OutputConfig) -> Iterator[SinkType]:
    """Yield the types of the outputs of a configuration."""
    return (sink for sink in SINKS if sink.applies(output))


def output_files(output: OutputConfig) -> list[str]:
    """Return the files that a run writes from beginning to end."""
    return [*output.paths, *(getattr(output, file.key) for file in FILE_SINKS if file.applies(output))]


def takes_pictures(output: OutputConfig, *, all_frames: bool = False) -> bool:
    """Return True if an output takes the pictures of frames with an answer; `all_frames`: of other frames, too."""
    wishes = {sink.pictures for sink in sinks_of(output) if not sink.pictures_key or getattr(output, sink.pictures_key)}
    return "every" in wishes or (not all_frames and "asked" in wishes)


def _captions(at: FileOpening) -> Sink:
    from stream.sinks.captions import CaptionSink

    return CaptionSink(at.path, resume=at.resume)


def _json_lines(at: FileOpening) -> Sink:
    from stream.sinks.output_file import JsonlSink

    return JsonlSink(at.path, timing=at.output.timing, resume=at.resume)


def _hls(at: FileOpening) -> Sink:
    from stream.sinks.hls.sink import HlsSink

    return HlsSink(at.path, at.output.hls, live=is_live_address(at.source))


def _mcap(at: FileOpening) -> Sink:
    from stream.sinks.robotics.mcap_file import McapSink

    return McapSink(at.path, at.output, resume=at.resume)


def _rosbag(at: FileOpening) -> Sink:
    from stream.sinks.robotics.rosbag import RosbagSink

    return RosbagSink(at.path, at.output)


def _rerun_file(at: FileOpening) -> Sink:
    from stream.sinks.rerun.file import RerunFileSink

    return RerunFileSink(at.path, redacted(at.source))


def _heatmap(at: FileOpening) -> Sink:
    from stream.sinks.heatmap import HeatmapSink

    scene = at.source if at.output.heatmap_truth else ""
    return HeatmapSink(at.path, at.find_run, at.output.heatmap_layers, scene)


def _clips(at: FileOpening) -> Sink:
    from stream.sinks.clips.sink import ClipSink

    return ClipSink(at.output, at.source)


def _explanations(at: FileOpening) -> Sink:
    from stream.sinks.explanations import ExplanationSink

    return ExplanationSink(at.path, at.output.why_max_mib)


def _overlay(at: FileOpening) -> Sink:
    from stream.sinks.captions import OverlaySink

    return OverlaySink(at.path)


def _publish(at: ServiceOpening) -> Sink:
    from stream.sinks.services import PublishSink

    return PublishSink(at.config, at.monitor)


def _control(at: ServiceOpening) -> Sink:
    from stream.sinks.services import ControlSink

    return ControlSink(at.config, at.monitor)


def _metrics(at: ServiceOpening) -> Sink:
    from stream.sinks.metrics import open_metrics

    return open_metrics(at.config, at.monitor)


def _web(at: ServiceOpening) -> Sink:
    from stream.sinks.web import WebSink

    return WebSink(at.config, at.monitor, camera=at.page)


def _check_web(config: Config) -> None:
    from stream.web.access import WebAccess

    WebAccess.of(config.output)


def _mqtt(at: ServiceOpening) -> Sink:
    from stream.sinks.mqtt import MqttSink

    return MqttSink(at.config, at.monitor)


def _check_mqtt(config: Config) -> None:
    from stream.mqtt.broker import Broker

    Broker.of(config)


def _check_clips(config: Config) -> None:
    from stream.recording.clip_folder import check_clip_folder

    if not config.watch and config.output.web is None:  # the page's programs may add one
        raise ConfigError("--clips writes the moments of watches; give one, with --watch QUESTION, or give --web")
    check_clip_folder(config.output.clips or "")


def _foxglove(at: ServiceOpening) -> Sink:
    from stream.sinks.robotics.foxglove_server import FoxgloveSink

    return FoxgloveSink(at.config)


def _webhook(at: ServiceOpening) -> Sink:
    from stream.sinks.webhook import WebhookSink

    silent = [watch.name for watch in at.config.watch if not watch.webhook]
    return WebhookSink(at.config.output.webhook or "", silent=silent)


def _check_webhook(config: Config) -> None:
    from stream.sinks.webhook import Webhook

    Webhook.of(config.output.webhook or "")


def _otlp(at: ServiceOpening) -> Sink:
    from stream.sinks.otlp.sink import OtlpSink

    return OtlpSink(at.config)


def _rerun(at: ServiceOpening) -> Sink:
    from stream.sinks.rerun.viewer import RerunViewerSink

    return RerunViewerSink(ViewerAddress.of(at.config.output.rerun or ""), redacted(at.config.source))


def _remember(at: ServiceOpening) -> Sink:
    from stream.sinks.past import PastSink

    return PastSink(at.config, resume=at.resume)


def _check_remember(config: Config) -> None:
    from stream.sinks.output_file import check_database

    assert config.output.remember is not None
    check_database(config.output.remember, output_files(config.output), config.source)


JSON_LINES = SinkType(help="JSON lines (docs/cli.md#json-lines)", suffixes=(".jsonl",), open=_json_lines)

CAPTION_SINKS = (
    SinkType(help="captions: WebVTT, SubRip", suffixes=(".vtt", ".srt"), open=_captions),
    JSON_LINES,
    SinkType(help="a stream with captions (docs/streaming.md)", suffixes=(HLS_SUFFIX,), open=_hls),
    SinkType(
        help="recording for Foxglove and ROS 2 (docs/ros2.md)",
        suffixes=(MCAP_SUFFIX,),
        extra=FOXGLOVE,
        pictures="every",
        open=_mcap,
    ),
    SinkType(help="ROS 2 bag (docs/ros2.md)", suffixes=(BAG_SUFFIX,), extra=ROS2, pictures="every", open=_rosbag),
    SinkType(
        help="Rerun recording (docs/rerun.md)",
        suffixes=(RERUN_SUFFIX,),
        extra=RERUN,
        pictures="every",
        open=_rerun_file,
    ),
)
"""Types for `output.paths`, by suffix."""

FILE_SINKS = (
    SinkType(help="heat map", key="heatmap", suffixes=(".mp4", ".png"), open=_heatmap),
    SinkType(help="reasons for tokens", key="why", suffixes=(".jsonl",), open=_explanations),
    SinkType(help="overlay", key="overlay", suffixes=(".txt",), open=_overlay),
)
"""Files with separate keys; `help` names their content."""

CLIPS = SinkType(key="clips", pictures="asked", check=_check_clips, open=_clips)
"""Folder of pictures and videos of matches."""

SERVICES = (
    SinkType(key="publish", check=lambda to: needs_keys(to.network, to.output.publish or ""), open=_publish),
    SinkType(key="control", check=lambda to: needs_keys(to.network, to.output.control or ""), open=_control),
    SinkType(key="metrics_port", open=_metrics),
    SinkType(key="web", extra=WEB, check=_check_web, open=_web),
    SinkType(key="mqtt", extra=MQTT, pictures="asked", pictures_key="mqtt_picture", check=_check_mqtt, open=_mqtt),
    SinkType(key="foxglove", extra=FOXGLOVE, pictures="every", check=foxglove_address, open=_foxglove),
    SinkType(key="webhook", check=_check_webhook, open=_webhook),
    SinkType(key="otlp", extra=OTLP, check=lambda to: traces_url(to.output.otlp or ""), open=_otlp),
    SinkType(
        key="rerun",
        extra=RERUN,
        pictures="every",
        check=lambda to: ViewerAddress.of(to.output.rerun or ""),
        open=_rerun,
    ),
    SinkType(key="remember", pictures="asked", check=_check_remember, open=_remember),
)
"""Types of services for other programs, by key."""

SINKS = (*CAPTION_SINKS, *FILE_SINKS, CLIPS, *SERVICES)

CAPTION_SUFFIXES = tuple(suffix for sink in CAPTION_SINKS for suffix in sink.suffixes)
