"""Table `[ray]` of a fleet file: resources of cameras and answer servers on a node, and the number of servers.

[ray]
camera = { camera_host = 1 }     # resources of each camera
answers = { GPU = 1 }            # resources of each answer server
servers = 1                      # answer servers at the beginning, and at least
servers_max = 3                  # and at most
wait_s = 2.0                     # p95 of the wait for a turn that another one is started for

[ray.cameras.door]               # resources of one camera, in the place of those above
door_node = 1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from stream.config import Config, Section
from stream.errors import ConfigError
from stream.extensions.fleet.tables import read_table, refuse_unknown
from stream.sinks.types import sinks_of

SERVERS_MAX = 16

STAY = frozenset({"viewer pictures", "overlays", "record"})
"""Needs of outputs that only the frames themselves meet, which stay on the camera's node."""

Resources = dict[str, Annotated[float, Field(gt=0)]]
"""Amounts by the names that Ray knows resources by: `CPU`, `GPU`, or those that a node was started with."""


class RaySettings(Section):
    """Placement of a fleet on a Ray cluster. Types are strict, as in the configuration."""

    camera: Resources = Field(default={})
    """Resources that each camera needs of its node; without any it may be on every node."""
    cameras: dict[str, Resources] = Field(default={})
    """Resources of single cameras, by name, in the place of `camera`."""
    answers: Resources = Field(default={})
    """Resources that each answer server needs of its node."""
    servers: int = Field(default=1, ge=1, le=SERVERS_MAX)
    """Answer servers at the beginning, and the least number of them."""
    servers_max: int | None = Field(default=None, ge=1, le=SERVERS_MAX)
    """Most answer servers; as many as `servers` when absent."""
    wait_s: float = Field(default=2.0, gt=0)
    """p95 of the wait for a turn, in seconds, above which another answer server is started."""

    @property
    def most_servers(self) -> int:
        """Answer servers that there may be at once."""
        return self.servers_max or self.servers

    def of_camera(self, name: str) -> dict[str, float]:
        """Return the resources that a camera needs."""
        return self.cameras.get(name, self.camera)


def read_settings(table: object, origin: str, cameras: Mapping[str, Any]) -> RaySettings:
    """Return the settings of the table; `origin` names it in messages, `cameras` are those of the file.

    Raises ConfigError with one line for an unknown key, a wrong value, and a camera that the file does not have.
    """
    settings = read_table(RaySettings, table, origin, "[ray] with servers = 1")
    refuse_unknown("camera", settings.cameras, cameras, f"{origin}: cameras")
    if settings.servers_max is not None and settings.servers_max < settings.servers:
        raise ConfigError(
            f"{origin}: servers_max = {settings.servers_max} is less than servers = {settings.servers}; raise it, or "
            "leave it out"
        )
    return settings


def check_far(config: Config) -> None:
    """Raises ConfigError for an output that needs data that stays on a camera's node."""
    for sink in sinks_of(config):
        if sink.needs & STAY:
            raise ConfigError(
                f"{sink.key} needs the frames themselves, which stay on the camera's node; leave it out, or --ray"
            )
