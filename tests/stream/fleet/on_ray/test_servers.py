"""Answer servers on a cluster: which are begun, drained and given up, by what each says of itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import msgspec

from arr_coc.errors import ModelNotFound
from stream.fleet.cameras import NamedCamera
from stream.fleet.on_ray.cluster import HostUnavailable
from stream.fleet.on_ray.hosts import AnswerHost
from stream.fleet.on_ray.messages import ServerState
from stream.fleet.on_ray.servers import ClusterServers
from stream.fleet.on_ray.settings import RaySettings
from tests.support.http_server import LoopbackServer, QuietHandler
from tests.support.runs import config


class ScriptedActor:
    """An answer server that says `state` of itself; what it is asked to do stands in `calls`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ServerState("waiting")
        self.away = False
        self.calls: list[str] = []

    def call(self, method: str, *arguments: object, limit_s: float) -> Any:
        if method == "state":
            return msgspec.json.encode(self.state)
        self.calls.append(method)
        if self.away:
            raise HostUnavailable(f"{self.name} does not reply")
        return None

    def restart(self) -> None:
        self.calls.append("restart")

    def kill(self) -> None:
        self.calls.append("kill")


class ScriptedCluster:
    def __init__(self) -> None:
        self.actors: list[ScriptedActor] = []

    def has_room(self, resources: dict[str, float]) -> bool:
        return True

    def start(self, kind: Callable[[str], Any], name: str, resources: dict[str, float]) -> ScriptedActor:
        self.actors.append(ScriptedActor(name))
        return self.actors[-1]


def two_servers(
    fail: Callable[[str, Exception], None] = lambda camera, error: None,
) -> tuple[ClusterServers, list[ScriptedActor], Callable[[], None]]:
    """Two answer servers, of which one would be enough, and a check of them."""
    cluster, settings = ScriptedCluster(), RaySettings(servers=1, servers_max=2)
    cameras = [NamedCamera(name, config()) for name in ("door", "yard")]
    answers = ClusterServers(cameras, cluster, settings, lambda line: None, fail)  # type: ignore[arg-type]
    answers._keys = {"server": {}, "client": {}}
    (group,) = answers._groups
    for _ in range(2):
        answers._add(group)
    return answers, cluster.actors, lambda: answers._look_at(group)


def test_a_server_that_is_not_needed_is_drained_whatever_becomes_of_it() -> None:
    answers, (stays, leaves), look = two_servers()
    stays.state = leaves.state = ServerState("ok", "tcp://10.0.0.1:1")
    look()
    (group,) = answers._groups
    assert group.places[1] is not None
    group.places[1].draining = True
    leaves.away = True
    look()
    leaves.away = False
    look()
    assert leaves.calls == ["drain", "drain"], "it did not hear the first"
    leaves.state = ServerState("waiting")
    look()
    assert leaves.calls[2:] == ["kill"], "Ray started it again, and nobody needs it"
    assert group.places[1] is None
    assert stays.calls == []


def test_servers_that_cannot_serve_are_given_up_for_good() -> None:
    failures: list[tuple[str, str]] = []
    answers, (one, other), look = two_servers(lambda camera, error: failures.append((camera, repr(error))))
    one.state = ServerState("failed", error="ModelNotFound", message="there is no such model")
    for _ in range(3):
        look()
    error = repr(ModelNotFound("there is no such model"))
    assert failures == [("door", error), ("yard", error)]
    assert (one.calls, other.calls) == (["kill"], ["kill"])
    assert answers.states() == []


def test_a_server_that_is_too_busy_for_its_pages_still_serves() -> None:
    class Pages(QuietHandler, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            health = b'{"status": "ok", "reason": null, "clients": 2, "turns_waiting": 1}'
            self.send_whole(200, health if self.path == "/healthz" else b"arr_coc_server_turn_wait_p95_seconds 0.5\n")

    host = AnswerHost("answers 1")
    assert msgspec.json.decode(host.state(), type=ServerState).status == "waiting"
    host._thread, host._endpoint = threading.current_thread(), "tcp://10.0.0.1:1"
    with LoopbackServer(Pages) as pages:
        host._metrics_port = pages.port
        served = msgspec.json.decode(host.state(), type=ServerState)
    assert served == ServerState("ok", "tcp://10.0.0.1:1", clients=2, turns_waiting=1, wait_p95_s=0.5)
    assert msgspec.json.decode(host.state(), type=ServerState) == served, "its pages are not there now"
