"""Fleet on a cluster: each camera and each answer server is an actor, and this process writes the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from stream.answer.model import CONFIGURED
from stream.config import Config
from stream.fleet.cameras import NamedCamera
from stream.fleet.on_ray.cluster import RayCluster
from stream.fleet.on_ray.hosts import CameraHost
from stream.fleet.on_ray.run import run_in_actor
from stream.fleet.on_ray.servers import ClusterServers
from stream.fleet.on_ray.settings import RaySettings
from stream.fleet.run import Fleet
from stream.monitor.health import RunHandle
from stream.sinks.base import Display


class ClusterFleet(Fleet):
    """Several cameras, each on a node of a cluster; outputs, metrics and signals are as with `Fleet`.

    Raises ConfigError where the cluster lacks resources.
    """

    def __init__(
        self,
        cameras: Sequence[NamedCamera],
        display: Display,
        cluster: RayCluster,
        settings: RaySettings,
        *,
        limit_s: float | None = None,
        refused: Mapping[str, str] | None = None,
        model_loader: str = CONFIGURED,
    ) -> None:
        super().__init__(cameras, display, limit_s=limit_s, refused=refused, model_loader=model_loader)
        self._cluster = cluster
        self._settings = settings
        self._servers = ClusterServers(cameras, cluster, settings, display.show_note, self._controls, model_loader)
        needs = {f"camera {camera.name}": settings.of_camera(camera.name) for camera in cameras}
        if len(self._servers):
            needs |= {f"answers {n}": settings.answers for n in range(1, settings.servers * len(self._servers) + 1)}
        cluster.check(needs)

    def _start_answers(self, stack: ExitStack) -> None:
        stack.enter_context(self._servers.running())

    def _open(self, camera: NamedCamera, config: Config) -> RunHandle:
        host = self._cluster.start(CameraHost, f"camera {camera.name}", self._settings.of_camera(camera.name))
        return run_in_actor(config, host, self._controls[camera.name])
