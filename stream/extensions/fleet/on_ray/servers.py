"""Answer servers of a fleet on a cluster: as many as are needed, and the node of each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

from msgspec.structs import replace

from stream.answer.model import CONFIGURED
from stream.config import Config
from stream.control import RunControl, is_user_fixable, remote_error
from stream.errors import StageDied
from stream.extensions.fleet.cameras import NamedCamera, answered_together
from stream.extensions.fleet.on_ray.cluster import ClusterActor, HostUnavailable, RayCluster
from stream.extensions.fleet.on_ray.hosts import AnswerHost, ServerState
from stream.extensions.fleet.on_ray.settings import RaySettings
from stream.transport.pool import ServerAddress, SetServers
from stream.transport.security import new_curves

HOLD_S = 15.0
"""Time for which the wait must be too long before another server is started: one long answer is no reason."""

CALM_S = 120.0
"""Time for which the wait must be short before a server is drained."""

SETTLE_S = 60.0
"""Time after a change: the p95 is that of the last minute, so until then it includes the time before."""


class ScalingPolicy:
    """Decides on one server more or fewer, between `least` and `most`. Pure: times are given."""

    def __init__(self, least: int, most: int, wait_s: float) -> None:
        self._least = least
        self._most = most
        self._wait_s = wait_s
        self._settled_s = 0.0
        self._long_since_s: float | None = None
        self._short_since_s: float | None = None

    def decide(self, servers: int, waits_s: Sequence[float], now_s: float) -> int:
        """Decide whether the cluster needs more servers.

        Args:
            servers: Number of servers, ready or not.
            waits_s: p95 of the wait for a turn, of each ready server.
            now_s: Present time of a monotonic clock.

        Returns:
            1 for another server, -1 for one fewer, 0 for no change.
        """
        if servers < self._least:
            return 1
        if len(waits_s) < servers:  # one is starting: it is waited for
            self._settled_s = now_s + SETTLE_S
            self._long_since_s = None
            self._short_since_s = None
            return 0
        worst_s = max(waits_s, default=0.0)
        self._long_since_s = _since(self._long_since_s, now_s, holds=worst_s > self._wait_s)
        # share of the limit below which a wait is short: what a server fewer adds stays below the limit
        self._short_since_s = _since(self._short_since_s, now_s, holds=worst_s < self._wait_s * 0.25)
        if now_s < self._settled_s:
            return 0
        if servers < self._most and _lasted(self._long_since_s, now_s, HOLD_S):
            return 1
        if servers > self._least and _lasted(self._short_since_s, now_s, CALM_S):
            self._settled_s = now_s + SETTLE_S
            self._short_since_s = None
            return -1
        return 0


def _since(before_s: float | None, now_s: float, *, holds: bool) -> float | None:
    if not holds:
        return None
    return now_s if before_s is None else before_s


def _lasted(since_s: float | None, now_s: float, limit_s: float) -> bool:
    return since_s is not None and now_s - since_s >= limit_s


CALL_LIMIT_S = 3.0

log = logging.getLogger(__name__)


@dataclass
class PlacedServer:
    """One answer server: its actor, and its newest state. `reported` is the address that was shown to the user."""

    actor: ClusterActor
    state: ServerState = field(default_factory=lambda: ServerState("loading"))
    draining: bool = False
    reported: str = ""


@dataclass
class ServerGroup:
    """Answer servers of the cameras whose model and options are the same. `assigned` are their addresses;
    `given_up`: all of them failed again and again, and none is started any more."""

    config: Config
    policy: ScalingPolicy
    users: list[str]
    servers: list[PlacedServer] = field(default_factory=list)
    assigned: tuple[ServerAddress, ...] = ()
    failures: int = 0
    full: bool = False
    given_up: bool = False


class ClusterServers:
    """Answer servers of all cameras of a fleet, for holders of keys that are made for it.

    `report` takes a line for the user. Each camera's control is given the addresses of its servers, or the error if it
    cannot be served. A thread looks after the servers while `running`.
    """

    def __init__(
        self,
        cameras: Sequence[NamedCamera],
        cluster: RayCluster,
        settings: RaySettings,
        report: Callable[[str], None],
        controls: Mapping[str, RunControl],
        model_loader: str = CONFIGURED,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._report = report
        self._controls = controls
        self._model_loader = model_loader
        self._groups: list[ServerGroup] = []
        for users in answered_together(cameras).values():
            policy = ScalingPolicy(settings.servers, settings.most_servers, settings.wait_s)
            self._groups.append(ServerGroup(users[0].config, policy, [camera.name for camera in users]))
        self._server_curve, self._client_curve = new_curves()
        self._stopping = threading.Event()
        self._actor_number = 0

    def __len__(self) -> int:
        return len(self._groups)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the servers inside the block."""
        for group in self._groups:
            for _ in range(self._settings.servers):
                self._add(group)
        thread = threading.Thread(target=self._supervise, name="answer-servers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(CALL_LIMIT_S)
            for group in self._groups:
                self._kill_all(group)

    def _supervise(self) -> None:
        while not self._stopping.is_set():
            for group in self._groups:
                try:
                    self._look_at(group)
                except Exception:
                    log.debug("looking after the answer servers failed", exc_info=True)
            self._stopping.wait(1.0)  # time between two looks at the servers

    def _look_at(self, group: ServerGroup) -> None:
        if group.given_up:
            return
        for server in list(group.servers):
            if not self._stopping.is_set():
                self._update(server)
                self._act(group, server)
        # states in which a server may answer: connections show whether one that does not reply to Ray is gone
        addresses = [
            server.state.endpoint for server in group.servers if server.state.status in ("ok", "draining", "lost")
        ]
        assigned = tuple(ServerAddress(address, self._client_curve) for address in addresses if address)
        if assigned != group.assigned:
            group.assigned = assigned
            for camera in group.users:
                self._controls[camera].send(SetServers(assigned))
        if not group.given_up:
            self._scale(group)

    def _update(self, server: PlacedServer) -> None:
        try:
            server.state = cast(ServerState, server.actor.call("state", limit_s=CALL_LIMIT_S))
        except HostUnavailable as error:
            if server.reported:
                server.reported = ""
                self._report(f"{error}; Ray starts it again")
            server.state = replace(server.state, status="lost")
        except StageDied as error:
            server.state = ServerState("failed", error="ConfigError", message=str(error))

    def _act(self, group: ServerGroup, server: PlacedServer) -> None:
        """Act on the state of a server."""
        state = server.state
        actor = server.actor
        if server.draining:
            if state.status in ("loading", "ok"):
                with suppress(HostUnavailable):  # asked again the next time
                    actor.call("drain", limit_s=CALL_LIMIT_S)
            elif state.status in ("drained", "failed", "stalled"):
                actor.kill()
                group.servers.remove(server)
        elif state.status == "ok" and server.reported != state.endpoint:
            server.reported = state.endpoint
            group.failures = 0
            self._report(f"{actor.name} at {state.endpoint}")
        elif state.status in ("failed", "stalled"):
            self._replace(group, server)

    def _replace(self, group: ServerGroup, server: PlacedServer) -> None:
        """Have a server that failed started again; end all of its group if that would not help."""
        state = server.state
        server.reported = ""
        error = remote_error(state.error, state.message)
        group.failures += 1
        # servers of one model that may fail one after the other before its cameras end
        if is_user_fixable(error) or group.failures > 5:
            group.given_up = True
            for camera in group.users:
                self._controls[camera].fail(error or StageDied("answer", state.message))
            self._kill_all(group)
        else:
            self._report(f"{server.actor.name}: {state.message}; Ray starts it again")
            server.actor.restart()

    def _kill_all(self, group: ServerGroup) -> None:
        while group.servers:
            group.servers.pop().actor.kill()

    def _scale(self, group: ServerGroup) -> None:
        staying = [server for server in group.servers if not server.draining]
        waits_s = [server.state.wait_p95_s for server in staying if server.state.status == "ok"]
        change = group.policy.decide(len(staying), waits_s, time.monotonic())
        if change > 0:
            full = not self._cluster.has_room(self._settings.answers)
            wait = f"cameras wait {max(waits_s, default=0.0):.1f} s for a turn"
            if not full:
                self._report(f"{wait}: starting another answer server")
                self._add(group)
            elif not group.full:
                self._report(f"{wait}, and no node has room for another answer server")
            group.full = full
        elif change < 0:
            staying[-1].draining = True
            self._report(f"{staying[-1].actor.name}: drained, the others are enough")

    def _add(self, group: ServerGroup) -> None:
        self._actor_number += 1
        arguments = group.config, self._server_curve, self._model_loader
        actor = self._cluster.start(AnswerHost, f"answers {self._actor_number}", self._settings.answers, *arguments)
        group.servers.append(PlacedServer(actor))
