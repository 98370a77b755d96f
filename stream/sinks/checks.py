"""Checks of all output files of a run together, before anything is loaded or written."""

from __future__ import annotations

from collections.abc import Sequence
from pkgutil import resolve_name

from stream.config import Config
from stream.sinks.output_file import check_distinct, check_suffix, check_writable
from stream.sinks.paths import STDOUT
from stream.sinks.types import caption_suffixes, output_files, sinks_of


def check_outputs(config: Config) -> None:
    """Raise OutputError for an unknown suffix, an output given twice, an output that is the input, or a path that
    cannot be written."""
    for path in _files(config.output.paths):
        check_suffix(path, caption_suffixes(), "captions", "a heat-map video goes to --heatmap")
    for sink in sinks_of(config):
        if sink.is_caption and sink.check:
            resolve_name(sink.check)(config)
        if sink.writes_file:
            check_suffix(config.value(sink.key), sink.suffixes, f"the {sink.help}", "captions go to -o")
    check_distinct(output_files(config), config.source)
    for path in _files(output_files(config)):
        check_writable(path)


def _files(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if path != STDOUT]
