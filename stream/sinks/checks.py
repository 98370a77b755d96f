"""Checks of all output files of a run together, before anything is loaded or written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stream.config import Config
from stream.errors import OutputError
from stream.sinks.output_file import (
    CAPTIONS_PLAYLIST,
    VIDEO_PLAYLIST,
    check_distinct,
    check_new_folder,
    check_suffix,
    check_writable,
)
from stream.sinks.paths import STDOUT, is_bag, is_hls
from stream.sinks.types import caption_suffixes, output_files, sinks_of


def check_outputs(config: Config) -> None:
    """Raise OutputError for an unknown suffix, an output given twice, an output that is the input, or a path that
    cannot be written."""
    for path in _files(config.output.paths):
        check_suffix(path, caption_suffixes(), "captions", "a heat-map video goes to --heatmap")
    streams = [stream for stream in config.output.paths if is_hls(stream)]
    for stream in streams:
        if Path(stream).name in (VIDEO_PLAYLIST, CAPTIONS_PLAYLIST):
            raise OutputError(f"output {stream!r} has the name of a playlist beside it; name it master.m3u8")
    if len(streams) > 1:
        raise OutputError(f"outputs {streams[0]!r} and {streams[1]!r} are two streams; a run writes one .m3u8")
    for sink in sinks_of(config):
        if sink.writes_file:
            check_suffix(config.value(sink.key), sink.suffixes, f"the {sink.help}", "captions go to -o")
    check_distinct(output_files(config), config.source)
    for path in _files(output_files(config)):
        (check_new_folder if is_bag(path) else check_writable)(path)


def _files(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if path != STDOUT]
