"""Answer servers on a cluster: assignment, draining and giving up, by their reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arr_coc.errors import ModelNotFound
from stream.control import RunControl
from stream.extensions.fleet.cameras import NamedCamera
from stream.extensions.fleet.on_ray.cluster import HostUnavailable
from stream.extensions.fleet.on_ray.hosts import ServerState
from stream.extensions.fleet.on_ray.servers import ClusterServers, ServerGroup
from stream.extensions.fleet.on_ray.settings import RaySettings
from tests.support.runs import config

CAMERAS = ("door", "yard")


class ScriptedActor:
    """An answer server that reports `state`; `calls` has the requests to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ServerState("loading")
        self.unreachable = False
        self.calls: list[str] = []

    def call(self, method: str, *arguments: object, limit_s: float) -> Any:
        if method != "state":
            self.calls.append(method)
        if self.unreachable:
            raise HostUnavailable(f"{self.name} does not reply")
        return self.state if method == "state" else None

    def restart(self) -> None:
        self.calls.append("restart")

    def kill(self) -> None:
        self.calls.append("kill")


class ScriptedCluster:
    def __init__(self) -> None:
        self.actors: list[ScriptedActor] = []

    def has_room(self, resources: dict[str, float]) -> bool:
        return True

    def start(self, kind: object, name: str, resources: dict[str, float], *arguments: object) -> ScriptedActor:
        self.actors.append(ScriptedActor(name))
        return self.actors[-1]


def two_servers(
    controls: dict[str, RunControl],
) -> tuple[ServerGroup, list[ScriptedActor], Callable[[], list[str] | None]]:
    """Two answer servers, of which one would be enough, and a check of them: it returns the addresses that the first
    camera was assigned."""
    cluster, settings = ScriptedCluster(), RaySettings(servers=1, servers_max=2)
    cameras = [NamedCamera(name, config()) for name in CAMERAS]
    answers = ClusterServers(cameras, cluster, settings, lambda line: None, controls)  # type: ignore[arg-type]
    (group,) = answers._groups
    for _ in range(2):
        answers._add(group)

    def look() -> list[str] | None:
        answers._look_at(group)
        commands: list[Any] = controls[CAMERAS[0]].take_commands()
        return [server.address for server in commands[0].servers] if commands else None

    return group, cluster.actors, look


def test_cameras_are_assigned_the_servers_that_serve() -> None:
    _, (first, second), look = two_servers({name: RunControl() for name in CAMERAS})
    assert look() is None
    first.state = ServerState("ok", "tcp://10.0.0.1:1")
    second.state = ServerState("loading", "tcp://10.0.0.2:1")
    assert look() == ["tcp://10.0.0.1:1"]
    second.state = ServerState("ok", "tcp://10.0.0.2:1")
    assert look() == ["tcp://10.0.0.1:1", "tcp://10.0.0.2:1"]
    first.unreachable = True
    assert look() is None, "its node may be busy: connections show whether it is gone"
    first.unreachable, first.state = False, ServerState("loading", "tcp://10.0.0.3:1")
    assert look() == ["tcp://10.0.0.2:1"]
    first.state = ServerState("ok", "tcp://10.0.0.3:1")
    assert look() == ["tcp://10.0.0.3:1", "tcp://10.0.0.2:1"]


def test_a_server_that_is_not_needed_is_drained_whatever_becomes_of_it() -> None:
    group, (stays, leaves), look = two_servers({name: RunControl() for name in CAMERAS})
    stays.state = leaves.state = ServerState("ok", "tcp://10.0.0.1:1")
    look()
    group.servers[1].draining = True
    leaves.unreachable = True
    look()
    assert leaves.calls == []
    leaves.unreachable = False
    look()
    leaves.state = ServerState("loading")
    look()
    assert leaves.calls == ["drain", "drain"], "Ray started it again, and it is not needed"
    leaves.state = ServerState("drained")
    look()
    assert leaves.calls[2:] == ["kill"]
    assert len(group.servers) == 1
    assert stays.calls == []


def test_servers_that_cannot_serve_are_given_up_for_good() -> None:
    controls = {name: RunControl() for name in CAMERAS}
    group, (first, second), look = two_servers(controls)
    first.state = ServerState("failed", error="ModelNotFound", message="there is no such model")
    for _ in range(3):
        look()
    assert [repr(control.failure) for control in controls.values()] == [
        repr(ModelNotFound("there is no such model"))
    ] * 2
    assert (first.calls, second.calls) == (["kill"], ["kill"])
    assert group.servers == []
