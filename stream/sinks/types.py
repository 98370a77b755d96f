"""Sink types of the core and of the extensions: suffixes or key, library, check, and the function that opens the sink.

Help, checks, doctor, the documents and `stream.sinks.factory` read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from stream.config import Config
from stream.extension import Need, PathForm, SinkType
from stream.extension.registry import extensions


@cache
def sink_types() -> tuple[SinkType, ...]:
    """Return all types, those of the core first."""
    return (*CORE, *(sink for extension in extensions() for sink in extension.sinks))


def caption_types() -> Iterator[SinkType]:
    """Yield the types for `output.paths`, by suffix."""
    return (sink for sink in sink_types() if sink.is_caption)


def caption_type(path: str) -> SinkType:
    """Return the type of a caption output that `check_outputs` has accepted."""
    return next((sink for sink in caption_types() if sink.takes(path)), JSON_LINES)


def path_form(path: str) -> PathForm:
    """Return what an output's path names."""
    return caption_type(path).form


def caption_suffixes() -> tuple[str, ...]:
    """Return the suffixes of `output.paths`."""
    return tuple(suffix for sink in caption_types() for suffix in sink.suffixes)


def sinks_of(config: Config) -> Iterator[SinkType]:
    """Yield the types of the outputs of a configuration."""
    return (sink for sink in sink_types() if sink.applies(config))


def output_files(config: Config) -> list[str]:
    """Return the files that a run writes from beginning to end."""
    return [*config.output.paths, *(config.value(sink.key) for sink in sinks_of(config) if sink.writes_file)]


def is_needed(config: Config, need: Need) -> bool:
    """Return True if an output of a configuration needs this of its run."""
    return any(need in sink.needs for sink in sinks_of(config))


def takes_pictures(config: Config, *, all_frames: bool = False) -> bool:
    """Return True if an output takes the pictures of frames with an answer; `all_frames`: of other frames, too."""
    wishes = {sink.pictures for sink in sinks_of(config) if not sink.pictures_key or config.value(sink.pictures_key)}
    return "every" in wishes or (not all_frames and "asked" in wishes)


JSON_LINES = SinkType(
    help="JSON lines (docs/cli.md#json-lines)", suffixes=(".jsonl",), open="stream.sinks.output_file:JsonlSink.open"
)

CORE = (
    SinkType(help="captions: WebVTT, SubRip", suffixes=(".vtt", ".srt"), open="stream.sinks.captions:CaptionSink.open"),
    JSON_LINES,
)
"""Types of the core."""
