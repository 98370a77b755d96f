"""Chooses the sinks for a run's outputs, by suffix, and claims every file before the run begins."""

from __future__ import annotations

from contextlib import ExitStack

from stream.config import OutputConfig
from stream.sinks.base import Sink
from stream.sinks.captions import CaptionSink
from stream.sinks.heatmap import HeatmapSink, TakeOverlay
from stream.sinks.jsonl import JsonlSink
from stream.sinks.output_check import STDOUT, check_outputs
from stream.sinks.why import ExplanationSink


def open_sinks(config: OutputConfig, source: str, take_overlay: TakeOverlay, *, resume: bool = False) -> list[Sink]:
    """The file sinks of a run; `resume`: of one that continues another, whose captions are in the files.

    Raises OutputError, having let go of everything, where one cannot be written.
    """
    check_outputs(config, source)
    with ExitStack() as opened:
        sinks = [_opened(opened, _caption_sink(path, config.timing, resume)) for path in config.paths]
        if config.heatmap is not None:
            sinks.append(_opened(opened, HeatmapSink(config.heatmap, take_overlay)))
        if config.why is not None:
            sinks.append(_opened(opened, ExplanationSink(config.why)))
        opened.pop_all()
    return sinks


def _opened(opened: ExitStack, sink: Sink) -> Sink:
    opened.callback(sink.close)
    return sink


def _caption_sink(path: str, timing: bool, resume: bool) -> Sink:
    if path == STDOUT or path.lower().endswith(".jsonl"):
        return JsonlSink(path, timing=timing, resume=resume)
    return CaptionSink(path, resume=resume)
