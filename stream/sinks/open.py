"""Chooses the sinks for a run's outputs, by suffix, and claims every file before the run begins."""

from __future__ import annotations

import os
import stat
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
from stream.sources.address import STDIN

CAPTION_SUFFIXES = (".vtt", ".srt", ".jsonl")
HEATMAP_SUFFIXES = (".mp4",)
WHY_SUFFIXES = (".jsonl",)

STDIN_FD = 0


def check_outputs(config: OutputConfig, source: str) -> None:
    """Raises OutputError for an unknown suffix, an output given twice, and an output that is the input."""
    for path in config.paths:
        check_suffix(path, CAPTION_SUFFIXES, "captions", "a heat-map video goes to --heatmap")
    if config.heatmap is not None:
        check_suffix(config.heatmap, HEATMAP_SUFFIXES, "the heat map", "captions go to -o")
    if config.why is not None:
        check_suffix(config.why, WHY_SUFFIXES, "the reasons for tokens", "captions go to -o")
    check_apart(outputs_of(config), source)


def outputs_of(config: OutputConfig) -> list[str]:
    """The files that a run writes."""
    return [*config.paths, *(path for path in (config.heatmap, config.why) if path is not None)]


def check_apart(paths: Sequence[str], source: str, *others: str | None) -> None:
    """Raises OutputError where two outputs are one file, or writing one would overwrite the source or another input.

    Links of both kinds are followed; the source may be standard input, and that a file.
    """
    inputs = {_file_of(STDIN_FD if source == STDIN else source), *(_file_of(path) for path in others if path)}
    seen: dict[object, str] = {}
    for path in paths:
        file = _file_of(path)
        if file in inputs:
            raise OutputError(f"output {path!r} is the input; it would be overwritten: name another file")
        if file in seen:
            also = "" if path == seen[file] else f", as {seen[file]!r} and {path!r}"
            raise OutputError(f"output {path!r} is given twice{also}; give each its own file")
        seen[file] = path


def _file_of(path: str | int) -> object:
    """Equal for two names of one file; what is no regular file may be named as often as one likes."""
    try:
        about = os.stat(path)
    except OSError:
        return path if isinstance(path, int) else os.path.realpath(path)
    return (about.st_dev, about.st_ino) if stat.S_ISREG(about.st_mode) else object()


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


def check_suffix(path: str, known: Sequence[str], what: str, hint: str) -> None:
    """Raises OutputError where the path has none of the `known` suffixes; `hint` says where other things go."""
    suffix = Path(path).suffix
    if suffix.lower() not in known:
        got = f"suffix {suffix!r}" if suffix else "no suffix"
        raise OutputError(f"output {path!r} has {got}; {what} can be {', '.join(known)} ({hint})")
