"""Answer servers of a fleet on a cluster: as many as are needed, and where each of them is now."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stream.answer.model import CONFIGURED
from stream.config import Config
from stream.control import is_user_fixable, remote_error
from stream.errors import StageDied
from stream.fleet.answers import answered_together
from stream.fleet.cameras import NamedCamera
from stream.fleet.on_ray.cluster import ClusterActor, HostUnavailable, RayCluster
from stream.fleet.on_ray.hosts import AnswerHost
from stream.fleet.on_ray.messages import AnswersStart, CameraStart, KeyFiles, ServerState
from stream.fleet.on_ray.scaling import ScalingPolicy
from stream.fleet.on_ray.settings import RaySettings
from stream.transport.security import make_keys

POLL_S = 1.0
"""Time between two looks at the servers."""

CALL_LIMIT_S = 3.0

LOST_LIMIT = 5
"""Servers of one model that may fail one after the other before its cameras end."""

SERVES = ("ok", "draining")

log = logging.getLogger(__name__)


@dataclass
class PlacedServer:
    """One answer server: its actor, and the newest word of it. `told` is the address that was told to the user."""

    actor: ClusterActor
    state: ServerState = field(default_factory=lambda: ServerState("waiting"))
    draining: bool = False
    told: str = ""


@dataclass
class ServerGroup:
    """Answer servers of the cameras whose model and options are the same. `targets` are their addresses by place;
    `given_up`: there are none any more, because they failed again and again."""

    config: Config
    policy: ScalingPolicy
    places: list[PlacedServer | None]
    users: list[str]
    targets: list[str | None] = field(default_factory=list)
    failures: int = 0
    full: bool = False
    given_up: bool = False


class ClusterServers:
    """Answer servers of all cameras of a fleet, for holders of keys that are made for it.

    `tell` takes a line for the user; `fail` takes a camera that cannot be served, and why. A thread looks after the
    servers while `running`; the other methods are for any.
    """

    def __init__(
        self,
        cameras: Sequence[NamedCamera],
        cluster: RayCluster,
        settings: RaySettings,
        tell: Callable[[str], None],
        fail: Callable[[str, Exception], None],
        model_loader: str = CONFIGURED,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._tell = tell
        self._fail = fail
        self._model_loader = model_loader
        self._groups: list[ServerGroup] = []
        for users in answered_together(cameras).values():
            policy = ScalingPolicy(settings.servers, settings.most_servers, settings.wait_s)
            names = [camera.name for camera in users]
            self._groups.append(ServerGroup(users[0].config, policy, [None] * settings.most_servers, names))
        self._group_of = {name: group for group in self._groups for name in group.users}
        self._keys: dict[str, KeyFiles] = {}
        self._stopping = threading.Event()
        self._made = 0

    def __len__(self) -> int:
        return len(self._groups)

    def start_of(self, camera: NamedCamera) -> CameraStart:
        """Return what a camera needs on its host, at this moment; its configuration is still to be put in."""
        group = self._group_of.get(camera.name)
        if group is None:
            return CameraStart(config="")
        return CameraStart(config="", keys=self._keys["client"], servers=len(group.places), targets=list(group.targets))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the servers inside the block."""
        self._keys = fleet_keys()
        for group in self._groups:
            for _place in range(self._settings.servers):
                self._add(group)
        thread = threading.Thread(target=self._look_after, name="answer-servers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(CALL_LIMIT_S)
            for group in self._groups:
                self._kill_all(group)

    def states(self) -> list[ServerState]:
        """Return what is known of each server."""
        return [server.state for group in self._groups for server in group.places if server is not None]

    def _look_after(self) -> None:
        while not self._stopping.is_set():
            for group in self._groups:
                try:
                    self._look_at(group)
                except Exception:
                    log.debug("looking after the answer servers failed", exc_info=True)
            self._stopping.wait(POLL_S)

    def _look_at(self, group: ServerGroup) -> None:
        if group.given_up:
            return
        for place, server in enumerate(group.places):
            if server is not None and not self._stopping.is_set():
                self._update(server)
                self._act(group, place, server)
        targets = [None if server is None else _target(server.state) for server in group.places]
        if targets != group.targets:
            group.targets = targets
        if not group.given_up:
            self._scale(group)

    def _update(self, server: PlacedServer) -> None:
        try:
            state = msgspec.json.decode(server.actor.call("state", limit_s=CALL_LIMIT_S), type=ServerState)
        except HostUnavailable as error:
            if server.told:
                server.told = ""
                self._tell(f"{error}; Ray starts it again")
            server.state = ServerState("lost")
        except StageDied as error:
            server.state = ServerState("failed", error="ConfigError", message=str(error))
        else:
            server.state = state

    def _act(self, group: ServerGroup, place: int, server: PlacedServer) -> None:
        """Do what the state of a server asks for."""
        state, actor = server.state, server.actor
        if server.draining:
            self._see_off(group, place, server)
        elif state.status == "waiting":
            start = AnswersStart(group.config.model_dump_json(), self._keys["server"], self._model_loader)
            try:
                actor.call("begin", msgspec.json.encode(start), limit_s=CALL_LIMIT_S)
            except HostUnavailable:
                return
        elif state.status == "ok" and server.told != state.endpoint:
            server.told, group.failures = state.endpoint, 0
            self._tell(f"{actor.name} at {state.endpoint}")
        elif state.status in ("failed", "stalled"):
            self._replace(group, server)

    def _see_off(self, group: ServerGroup, place: int, server: PlacedServer) -> None:
        """Let a server that is not needed any more end its answers; one that has none under way is killed."""
        if server.state.status in ("loading", "ok"):
            with suppress(HostUnavailable):  # then it is told the next time
                server.actor.call("drain", limit_s=CALL_LIMIT_S)
        elif server.state.status in ("waiting", "drained", "failed", "stalled"):
            server.actor.kill()
            group.places[place] = None

    def _replace(self, group: ServerGroup, server: PlacedServer) -> None:
        """Have a server that failed started again; end all of its group where that would not help."""
        state, server.told = server.state, ""
        error = remote_error(state.error, state.message)
        group.failures += 1
        if is_user_fixable(error) or group.failures > LOST_LIMIT:
            group.given_up = True
            for camera in group.users:
                self._fail(camera, error or StageDied("answer", state.message))
            self._kill_all(group)
        else:
            self._tell(f"{server.actor.name}: {state.message}; Ray starts it again")
            server.actor.restart()

    def _kill_all(self, group: ServerGroup) -> None:
        for place, server in enumerate(group.places):
            if server is not None:
                server.actor.kill()
                group.places[place] = None

    def _scale(self, group: ServerGroup) -> None:
        staying = [server for server in group.places if server is not None and not server.draining]
        waits_s = [server.state.wait_p95_s for server in staying if server.state.status == "ok"]
        change = group.policy.decide(len(staying), waits_s, time.monotonic())
        if change > 0:
            full = not self._cluster.has_room(self._settings.answers)
            wait = f"cameras wait {max(waits_s, default=0.0):.1f} s for a turn"
            if not full:
                self._tell(f"{wait}: starting another answer server")
                self._add(group)
            elif not group.full:
                self._tell(f"{wait}, and no node has room for another answer server")
            group.full = full
        elif change < 0:
            staying[-1].draining = True
            self._tell(f"{staying[-1].actor.name}: drained, the others are enough")

    def _add(self, group: ServerGroup) -> None:
        """Start a server at a free place; none where there is none."""
        place = next((place for place, server in enumerate(group.places) if server is None), None)
        if place is not None:
            self._made += 1
            actor = self._cluster.start(AnswerHost, f"answers {self._made}", self._settings.answers)
            group.places[place] = PlacedServer(actor)


def fleet_keys() -> dict[str, KeyFiles]:
    """Return new CURVE keys: the files of both halves, by "server" and "client"."""
    with tempfile.TemporaryDirectory() as folder:
        halves = make_keys(Path(folder) / "keys")
        return {
            half.name: {str(path.relative_to(half)): path.read_bytes() for path in half.rglob("*") if path.is_file()}
            for half in halves
        }


def _target(state: ServerState) -> str | None:
    return state.endpoint if state.status in SERVES else None
