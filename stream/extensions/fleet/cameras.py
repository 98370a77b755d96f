"""Cameras of one command: their names, their configurations, and the checks across them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from stream.config import Config
from stream.display.input import NAME
from stream.errors import ConfigError
from stream.extension.registry import section_models
from stream.recording.identity import ANSWER_KEYS
from stream.sinks.paths import STDOUT
from stream.sinks.types import sink_types, sinks_of
from stream.sources.address import BROWSER, STDIN

EXAMPLE = "door=rtsp://192.168.1.20/stream"

NAME_CHARS = 40
"""A name stands before every line, and in the names of files."""

_NAMED = re.compile(r"([^\s=/:]+)=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NamedCamera:
    """A camera: its name, and the configuration of its run."""

    name: str
    config: Config


def is_named(argument: str) -> bool:
    """Return True if a source is given with a name, as NAME=SOURCE; a file of that name is a file."""
    return _NAMED.fullmatch(argument) is not None and not os.path.exists(argument)


def read_named(arguments: Sequence[str]) -> dict[str, str]:
    """Return the sources of NAME=SOURCE by name.

    Raises ConfigError if a source has no name, if a name cannot be used, or if two sources have the same one: a typing
    error, so that no camera begins.
    """
    sources: dict[str, str] = {}
    for argument in arguments:
        match = _NAMED.fullmatch(argument)
        if match is None or not is_named(argument):
            raise ConfigError(
                f"{argument!r} has no name, and other sources have one; name all of them, as in {EXAMPLE}, to watch "
                "them together, or none, to watch one after another"
            )
        name, source = match.groups()
        problem = name_problem(name)
        if problem is not None:
            raise ConfigError(problem)
        if name in sources:
            raise ConfigError(f"{argument!r}: another camera is called {name!r}; give each a different name")
        sources[name] = source
    return sources


def name_problem(name: str) -> str | None:
    """Return why a camera cannot have this name, None if it can."""
    if NAME.fullmatch(name) and len(name) <= NAME_CHARS:
        return None
    return (
        f"a camera cannot be called {name!r}; take letters, digits, '_', '-' and '.', {NAME_CHARS} at most, such as "
        "front-door"
    )


def check_camera(config: Config) -> None:
    """Raise ConfigError for a source or setting that only a run of one camera may have."""
    if not config.source:
        raise ConfigError("it has no source; give for example source = 'rtsp://192.168.1.20/stream'")
    if config.source in (STDIN, BROWSER):
        raise ConfigError(f"the source {config.source!r} is watched alone; take it out, and watch it in another run")
    if config.value("web.camera") is not None:
        raise ConfigError("web.camera is for the page of one camera; leave it out")
    if config.pipeline.single_process:
        raise ConfigError("--single-process is for one camera; leave it out")


def check_together(cameras: Sequence[NamedCamera]) -> None:
    """Raise ConfigError if two cameras would write one file or serve one address. Several may write the same
    .jsonl, whose lines name the camera, and all are in one page, whose settings are checked here, once."""
    _refuse_twice(_files(cameras), "write {place!r}; put {{camera}} into its name, such as '{{camera}}{suffix}'")
    configs = {camera.name: camera.config for camera in cameras}
    for sink in sink_types():
        applying = [config for config in configs.values() if sink.shared and sink.applies(config)]
        if applying:
            sink.check_config(applying[0])
    for model in section_models().values():
        model.check_together(configs)
    for sink in sink_types():
        if sink.place != "address":
            continue
        places = ((str(place), camera.name) for camera in cameras if (place := camera.config.value(sink.key)))
        _refuse_twice(
            places, f"serve {sink.key} at {{place}}; give each its own in a file for `fleet`, or leave it out"
        )
    names = ((name, camera.name) for camera in cameras if (name := camera.config.value("mqtt.name")))
    _refuse_twice(names, "have the MQTT name {place!r}; leave mqtt.name out: a camera's own name is taken")


def shared_lines(cameras: Sequence[NamedCamera]) -> list[str]:
    """Return the files of JSON lines of all cameras, each once."""
    return list(dict.fromkeys(path for camera in cameras for path in camera.config.output.paths if is_json_lines(path)))


def is_json_lines(path: str) -> bool:
    """Return True if an output takes JSON lines, so that several cameras can write it."""
    return path == STDOUT or path.lower().endswith(".jsonl")


def _files(cameras: Sequence[NamedCamera]) -> Iterator[tuple[str, str]]:
    for camera in cameras:
        config = camera.config
        paths = [path for path in config.output.paths if not is_json_lines(path)]
        paths += [config.value(sink.key) for sink in sinks_of(config) if sink.writes_place]
        for path in paths:
            yield os.path.realpath(path), camera.name


def _refuse_twice(places: Iterable[tuple[str, str]], problem: str) -> None:
    cameras: dict[str, str] = {}
    for place, name in places:
        if place in cameras and cameras[place] != name:
            conflict = problem.format(place=place, suffix=os.path.splitext(place)[1])
            raise ConfigError(f"the cameras {cameras[place]} and {name} both {conflict}")
        cameras[place] = name


ANSWERED_BY = {*ANSWER_KEYS, "model", "allocator", "slots"}
"""Keys of `answer` that an answer process is started with; the other keys are each camera's own."""


def answering_options(config: Config) -> str | None:
    """Return the options of a camera's answer process; one process may serve cameras with equal options. None if a
    camera's answer server is elsewhere, or its separate process asks one over the network."""
    if config.uses_server:
        return None
    return json.dumps(config.answer.model_dump(mode="json", include=ANSWERED_BY), sort_keys=True)


def answered_together(cameras: Iterable[NamedCamera]) -> dict[str, list[NamedCamera]]:
    """Return the cameras that one answer process may serve, by its options; none of those that have a remote answer
    server."""
    groups: dict[str, list[NamedCamera]] = {}
    for camera in cameras:
        options = answering_options(camera.config)
        if options is not None:
            groups.setdefault(options, []).append(camera)
    return groups
