"""Chooses the sinks for a run's outputs, by suffix, and claims every file before the run begins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from stream.config import OutputConfig
from stream.errors import OutputError
from stream.sinks.base import Sink
from stream.sinks.captions import CaptionSink
from stream.sinks.heatmap import HeatmapSink, TakeOverlay
from stream.sinks.jsonl import JsonlSink
from stream.sinks.why import WhySink

CAPTION_SUFFIXES = (".vtt", ".srt", ".jsonl")
HEATMAP_SUFFIXES = (".mp4",)
WHY_SUFFIXES = (".jsonl",)


def check_outputs(config: OutputConfig, source: str) -> None:
    """Raises OutputError for an unknown suffix, an output given twice, and an output that is the input."""
    for path in config.paths:
        _check_suffix(path, CAPTION_SUFFIXES, "captions", "a heat-map video goes to --heatmap")
    paths = list(config.paths)
    if config.heatmap is not None:
        _check_suffix(config.heatmap, HEATMAP_SUFFIXES, "the heat map", "captions go to -o")
        paths.append(config.heatmap)
    if config.why is not None:
        _check_suffix(config.why, WHY_SUFFIXES, "the reasons for tokens", "captions go to -o")
        paths.append(config.why)
    seen: dict[str, str] = {}
    for path in paths:
        check_not_input(path, source)
        first = seen.setdefault(os.path.realpath(path), path)
        if first is not path:
            raise OutputError(f"output {path!r} is given twice")


def check_not_input(path: str, source: str) -> None:
    """Raises OutputError where writing `path` would overwrite the source."""
    try:
        same = os.path.samefile(path, source)
    except OSError:
        return
    if same:
        raise OutputError(f"output {path!r} is the input; it would be overwritten: name another file")


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
            sinks.append(_opened(opened, WhySink(config.why)))
        opened.pop_all()
    return sinks


def _opened(opened: ExitStack, sink: Sink) -> Sink:
    opened.callback(sink.close)
    return sink


def _caption_sink(path: str, timing: bool, resume: bool) -> Sink:
    if path.lower().endswith(".jsonl"):
        return JsonlSink(path, timing=timing, resume=resume)
    return CaptionSink(path, resume=resume)


def _check_suffix(path: str, known: Sequence[str], what: str, hint: str) -> None:
    suffix = Path(path).suffix
    if suffix.lower() not in known:
        got = f"suffix {suffix!r}" if suffix else "no suffix"
        raise OutputError(f"output {path!r} has {got}; {what} can be {', '.join(known)} ({hint})")
