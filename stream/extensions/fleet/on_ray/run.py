"""Frame worker on a node of a cluster, as the command sees it: frames are read there, outputs are written here."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version

import msgspec
from msgspec.structs import replace

from stream.answer.model import CONFIGURED
from stream.config import ASSIGNED_SERVERS, Config
from stream.control import Command, RunControl, Stop
from stream.errors import ConfigError, SourceError
from stream.events import FrameReady, Notice, Restarted
from stream.extensions.fleet.cameras import NamedCamera
from stream.extensions.fleet.on_ray.cluster import ActorStream, ClusterActor, HostUnavailable, RayCluster
from stream.extensions.fleet.on_ray.hosts import DISTRIBUTION, WAIT_S, CameraHost, HostIdentity
from stream.extensions.fleet.on_ray.servers import ClusterServers
from stream.extensions.fleet.on_ray.settings import RaySettings
from stream.extensions.fleet.run import Fleet
from stream.monitor.health import RunHandle
from stream.protocol.pictures import PictureEndpoints
from stream.runtime.run import FRAMES, Run
from stream.runtime.worker_messages import Report, SourceOpened, WorkerFinished, unpack_report
from stream.sinks.base import Display

CALL_LIMIT_S = 5.0
"""Time that a call, or the next batch of reports, may take on a busy machine."""

PLACE_LIMIT_S = 120.0
"""Time beyond `capture.open_timeout_s` for Ray to start a process on a node, and for that to import its libraries."""

log = logging.getLogger(__name__)

MOVED = "host-moved"
"""Code of the notice that reports the node of a camera."""


class FrameActor:
    """Frame worker on a node of a cluster: `host`, which Ray starts on another node if its own is lost."""

    def __init__(self, run: Run, host: ClusterActor) -> None:
        self._continuity = run.continuity
        self._host = host
        self._open_limit_s = run.config.capture.open_timeout_s + PLACE_LIMIT_S
        self._open_until_s = time.monotonic() + self._open_limit_s
        self._opened = self._ending = self._has_begun = False
        self._pending_commands: list[Command] = []
        self._stream: ActorStream | None = None
        self._heard_s = 0.0
        self._behind_ns = 0
        self._host_lost = False
        self._restarts: Counter[str] = Counter()
        self._news: list[Report] = []
        self.picture_endpoints = PictureEndpoints()

    @property
    def texture(self) -> None:
        """None: it is on another machine."""
        return None

    def processes(self) -> dict[str, int]:
        """None: they are on another machine."""
        return {}

    def send(self, command: Command) -> None:
        """Sends a command, as soon as the host can be reached."""
        self._ending = self._ending or isinstance(command, Stop)
        self._pending_commands.append(command)
        self._send_all()

    def receive(self) -> Sequence[Report]:
        """Returns the reports that are new, and restarts and moves of the host."""
        reports = [self._adjusted(unpack_report(data)) for data in self._fetch()]
        self._opened = self._opened or any(isinstance(report, SourceOpened) for report in reports)
        if not self._opened and time.monotonic() > self._open_until_s:
            limit = f"{self._open_limit_s:.0f} s"
            raise SourceError(
                f"no node has opened the source within {limit}; `ray status` shows whether the cluster has room"
            )
        if self._ending and self._host_lost:
            reports.append(WorkerFinished())
        news = self._news
        self._news = []
        return [*news, *reports]

    def recover(self, error: Exception, *, source_lost: bool) -> None:
        """Starts a host again whose source was lost; raises any other error."""
        if not source_lost or not self._continuity.frames_before:
            raise error
        log.debug("%s: the source cannot be opened there: %s", self._host.name, error)
        self._host.restart()
        self._stream = None
        self._note_lost(f"{self._host.name} was started again")

    def stop(self) -> None:
        """Ends the host."""
        self._host.kill()

    def _adjusted(self, report: Report) -> Report:
        """Return an event with times of this machine's clock, and restarts counted on over all hosts."""
        if isinstance(report, FrameReady):
            capture_ns = report.capture_ns + self._behind_ns
            ready_ns = report.ready_ns + self._behind_ns
            return replace(report, capture_ns=capture_ns, ready_ns=ready_ns)
        if isinstance(report, Restarted):
            self._restarts[report.process] += 1
            return replace(report, count=self._restarts[report.process])
        return report

    def _fetch(self) -> list[bytes]:
        """Return the packed reports that are new; begins the camera on a host that was started again."""
        try:
            if self._stream is None:
                self._stream = self._begin()
            batch: list[bytes] | None = self._stream.next(WAIT_S)
        except HostUnavailable as error:
            self._stream = None
            self._note_lost(str(error))
            time.sleep(0.3)  # time between two attempts to reach a host
            return []
        if batch is None:
            if time.monotonic() - self._heard_s > CALL_LIMIT_S:
                self._note_lost(f"{self._host.name} does not reply")
            return []
        self._heard_s = time.monotonic()
        self._host_lost = False
        self._send_all()
        return batch

    def _note_lost(self, reason: str) -> None:
        """Report, once until it is back, that the host cannot be reached; not before it was."""
        if not self._host_lost and self._has_begun:
            self._restarts[FRAMES] += 1
            self._news.append(Restarted(process=FRAMES, cause=reason, count=self._restarts[FRAMES]))
        self._host_lost = True

    def _begin(self) -> ActorStream:
        """Begin the camera on its host, at the present position; return its reports. Raises HostUnavailable, and
        ConfigError if the host has another version of this program."""
        identity = msgspec.json.decode(self._host.call("identity", limit_s=CALL_LIMIT_S), type=HostIdentity)
        local_version = version(DISTRIBUTION)
        if identity.version != local_version:
            raise ConfigError(
                f"the node {identity.address} has {DISTRIBUTION} {identity.version}, this machine {local_version}; "
                "install the same version on every node"
            )
        config = self._continuity.next_config()
        if not config.uses_server:  # the fleet assigns servers, which load the model
            answer = config.answer.model_copy(update={"server": ASSIGNED_SERVERS, "model": None})
            config = config.model_copy(update={"answer": answer})
        self._behind_ns = identity.ahead_ns - (time.time_ns() - time.monotonic_ns())
        reports = self._host.stream("run", config)
        self._heard_s = time.monotonic()
        self._has_begun = True
        self._news.append(Notice(code=MOVED, message=f"runs on the node {identity.address} ({identity.node[:8]})"))
        self._pending_commands += self._continuity.open_commands
        return reports

    def _send_all(self) -> None:
        try:
            while self._pending_commands:
                self._host.call("command", self._pending_commands[0], limit_s=CALL_LIMIT_S)
                del self._pending_commands[0]
        except HostUnavailable as error:
            self._note_lost(str(error))


def run_in_actor(config: Config, host: ClusterActor, control: RunControl | None = None) -> Run:
    """Opens a run whose frames are read on a node of a cluster; waits until the source is open there.

    Args:
        config: Configuration of the run.
        host: Actor that reads the frames.
        control: Control of the run, by default a separate one.

    Raises:
        StreamError: As `Run`.
        ArrCocError: As `Run`.
    """
    answer = config.answer
    model = answer.server or answer.model or "the bundled model"
    return Run(config, lambda run: FrameActor(run, host), control=control, model=model)


class ClusterFleet(Fleet):
    """Several cameras, each on a node of a cluster; outputs, metrics and signals are as with `Fleet`.

    Raises ConfigError if the cluster lacks resources.
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
