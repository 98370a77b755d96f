"""What can be seen to be wrong with a run's outputs before anything is opened or loaded."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from stream.config import OutputConfig
from stream.errors import OutputError
from stream.sinks.output_file import check_place as check_place
from stream.sources.address import STDIN

CAPTION_SUFFIXES = (".vtt", ".srt", ".jsonl")
HEATMAP_SUFFIXES = (".mp4",)
WHY_SUFFIXES = (".jsonl",)

STDOUT = "-"
"""In the place of a caption file: JSON lines on standard output."""

STDIN_FD = 0


def check_outputs(config: OutputConfig, source: str) -> None:
    """Raises OutputError for an unknown suffix, an output given twice, an output that is the input, and a place that
    cannot be written."""
    for path in _files(config.paths):
        check_suffix(path, CAPTION_SUFFIXES, "captions", "a heat-map video goes to --heatmap")
    if config.heatmap is not None:
        check_suffix(config.heatmap, HEATMAP_SUFFIXES, "the heat map", "captions go to -o")
    if config.why is not None:
        check_suffix(config.why, WHY_SUFFIXES, "the reasons for tokens", "captions go to -o")
    check_apart(outputs_of(config), source)
    for path in _files(outputs_of(config)):
        check_place(path)


def _files(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if path != STDOUT]


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
    """Equal for two names of one file; what is no regular file may be named as often as one likes, but for stdout."""
    if path == STDOUT:
        return path
    try:
        about = os.stat(path)
    except OSError:
        return path if isinstance(path, int) else os.path.realpath(path)
    return (about.st_dev, about.st_ino) if stat.S_ISREG(about.st_mode) else object()


def check_suffix(path: str, known: Sequence[str], what: str, hint: str) -> None:
    """Raises OutputError where the path has none of the `known` suffixes; `hint` says where other things go."""
    suffix = Path(path).suffix
    if suffix.lower() not in known:
        got = f"suffix {suffix!r}" if suffix else "no suffix"
        raise OutputError(f"output {path!r} has {got}; {what} can be {', '.join(known)} ({hint})")
