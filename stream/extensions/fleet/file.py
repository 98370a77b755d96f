"""File of several cameras: settings of all of them, and a table for each, in TOML.

[answer]                      # any key of the configuration, for all cameras
every_s = 4

[cameras.door]                # one camera: its source, and keys that differ
source = "rtsp://192.168.1.20/stream"
config = "webcam"             # a preset or configuration file, or several
answer.query = "Is anybody at the door?"
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream.config_loading import ConfigLayer, build_config, layer_from_file, leaves, read_toml
from stream.errors import ConfigError
from stream.extensions.fleet.cameras import name_problem
from stream.extensions.fleet.on_ray.settings import RaySettings, read_settings
from stream.extensions.fleet.tables import read_table
from stream.extensions.fleet.vllm import VllmSettings

CAMERAS = "cameras"
"""Table that holds a table for each camera."""

CLUSTER = "ray"
"""Table of resources that cameras need of the nodes of a Ray cluster."""

VLLM = "vllm"
"""Table of the vLLM server of `--engine vllm`."""

CONFIG = "config"
"""Key of a camera's presets and configuration files."""

EXAMPLE = "[cameras.door] with source = 'rtsp://192.168.1.20/stream'"


@dataclass(frozen=True)
class FleetFile:
    """Content of a file: the layers of all cameras, those of each by name, and why others cannot be taken, by name;
    placement on a Ray cluster; the server of `--engine vllm`."""

    common: list[ConfigLayer]
    cameras: dict[str, list[ConfigLayer]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    ray: RaySettings = field(default_factory=RaySettings)
    vllm: VllmSettings = field(default_factory=VllmSettings)


def read_fleet(name: str) -> FleetFile:
    """Read the fleet file `name`; a camera with a mistake is among the problems.

    Raises ConfigError if it cannot be read, has no cameras, or has a mistake in settings of all cameras.
    """
    try:
        tables = read_toml(Path(name), name)
    except ConfigError as error:
        if f"Cannot declare ('{CAMERAS}'" in str(error):
            raise ConfigError(f"{error}; give each camera a different name") from error
        raise
    cameras = tables.pop(CAMERAS, None)
    if not isinstance(cameras, Mapping) or not cameras:
        # a table that looks as if it were to be that of the cameras
        matches = difflib.get_close_matches(CAMERAS, tables, n=1)
        if matches:
            raise ConfigError(f"{name}: unknown key {matches[0]}; did you mean {CAMERAS}?")
        raise ConfigError(f"{name}: it has no cameras; write a table for each, such as {EXAMPLE}")
    ray = read_settings(tables.pop(CLUSTER, {}), f"{name}: [{CLUSTER}]", cameras)
    vllm = read_table(
        VllmSettings, tables.pop(VLLM, {}), f"{name}: [{VLLM}]", '[vllm] with command = "/opt/vllm/bin/vllm"'
    )
    fleet = FleetFile(_layers(name, tables), ray=ray, vllm=vllm)
    build_config(fleet.common)
    for camera, table in cameras.items():
        try:
            fleet.cameras[camera] = _camera_layers(f"{name}: camera {camera}", camera, table, fleet.common)
        except ConfigError as error:
            fleet.problems[camera] = str(error)
    return fleet


def _camera_layers(origin: str, camera: str, table: object, common: list[ConfigLayer]) -> list[ConfigLayer]:
    """Return the layers of one camera. Raises ConfigError, which names the file and the camera."""
    problem = name_problem(camera)
    if problem is not None:
        raise ConfigError(f"{origin}: {problem}")
    if not isinstance(table, Mapping):
        raise ConfigError(f"{origin}: it should be a table, such as {EXAMPLE}, got {table!r}")
    layers = _layers(origin, table)
    build_config([*common, *layers])
    if not table.get("source"):
        raise ConfigError(f"{origin}: it has no source; give for example source = 'rtsp://192.168.1.20/stream'")
    for key in (key for layer in layers for key in layer.values):
        if key == "metrics.port":
            raise ConfigError(f"{origin}: {key} is one port for all cameras; put it before their tables")
        if key.startswith("web."):
            raise ConfigError(f"{origin}: {key} is for the one page of all cameras; put it before their tables")
    return layers


def _layers(origin: str, table: Mapping[str, Any]) -> list[ConfigLayer]:
    """Return the layers of the presets and files that a table names, and of its keys."""
    value = table.get(CONFIG, [])
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{origin}: config should be a preset or file, or a list of them, got {value!r}")
    try:
        layers = [layer_from_file(name) for name in names]
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error
    keys = {key: value for key, value in table.items() if key != CONFIG}
    return [*layers, ConfigLayer(origin, dict(leaves(keys)))]
