"""Frame worker on a node of a cluster, as the command sees it: frames are there, outputs are here."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version

import msgspec
from msgspec.structs import replace

from stream.clock import Clock
from stream.config import Config
from stream.control import RunControl
from stream.errors import ConfigError, SourceError
from stream.events import FrameReady, Notice, Restarted
from stream.fleet.on_ray.cluster import ClusterActor, HostUnavailable
from stream.fleet.on_ray.hosts import DISTRIBUTION
from stream.fleet.on_ray.messages import CameraStart, HostIdentity
from stream.protocol.pictures import PictureEndpoints
from stream.runtime.run import FRAMES, Run
from stream.runtime.worker_messages import Report, SourceOpened, WorkerCommand, WorkerFinished, unpack_report

WAIT_S = 0.5
"""Time that a call waits on the node for reports."""

CALL_LIMIT_S = 5.0
"""Time that a call may take, on a busy machine."""

PAUSE_S = 0.3
"""Time between two attempts to reach a host."""

PLACE_LIMIT_S = 120.0
"""Time beyond `capture.open_timeout_s` for Ray to start a process on a node, and for that to import its libraries."""

log = logging.getLogger(__name__)

MOVED = "host-moved"
"""Code of the notice that says on which node a camera runs."""


class FrameActor:
    """Frame worker on a node of a cluster: `host`, which Ray starts on another node if its own is lost.

    `place` returns what a camera needs on its host beside its configuration.
    """

    def __init__(self, run: Run, host: ClusterActor, place: Callable[[], CameraStart]) -> None:
        self._continuity = run.continuity
        self._host = host
        self._place = place
        self._open_limit_s = run.config.capture.open_timeout_s + PLACE_LIMIT_S
        self._open_until_s = time.monotonic() + self._open_limit_s
        self._opened = self._ending = False
        self._unsent: list[WorkerCommand] = []
        self._incarnation: str | None = None
        self._started: bytes | None = None
        self._seen = 0
        self._behind_ns = 0
        self._lost: str | None = None
        self._restarts: Counter[str] = Counter()
        self._news: list[Report] = []
        self._routed: list[str | None] = []
        self.picture_endpoints = PictureEndpoints()

    def processes(self) -> dict[str, int]:
        """None: they are on another machine."""
        return {}

    def send(self, command: WorkerCommand) -> None:
        """Sends a command, as soon as the host can be reached."""
        self._ending = self._ending or command.end is not None
        self._unsent.append(command)
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
        if self._ending and self._lost is not None:
            reports.append(WorkerFinished())
        news, self._news = self._news, []
        return [*news, *reports]

    def recover(self, error: Exception, *, source_lost: bool) -> None:
        """Starts a host again whose source was lost; raises any other error."""
        if not source_lost or not self._continuity.frames_before:
            raise error
        log.debug("%s: the source cannot be opened there: %s", self._host.name, error)
        self._host.restart()

    def stop(self) -> None:
        """Ends the host."""
        self._host.kill()

    def _adjusted(self, report: Report) -> Report:
        """Return an event with times of this machine's clock, and restarts counted on over all hosts."""
        if isinstance(report, FrameReady):
            capture_ns, ready_ns = report.capture_ns + self._behind_ns, report.ready_ns + self._behind_ns
            return replace(report, capture_ns=capture_ns, ready_ns=ready_ns)
        if isinstance(report, Restarted):
            self._restarts[report.process] += 1
            return replace(report, count=self._restarts[report.process])
        return report

    def _fetch(self) -> list[bytes]:
        """Return the packed reports that are new; begins the camera on a host that was started again."""
        try:
            got = self._host.call("reports", self._seen, WAIT_S, limit_s=WAIT_S + CALL_LIMIT_S)
            if got is None or (self._incarnation is not None and got[0] != self._incarnation):
                self._begin()
                return []
        except HostUnavailable as error:
            self._note_lost(str(error))
            time.sleep(PAUSE_S)
            return []
        self._lost = None
        self._send_all()
        self._route()
        self._seen += len(got[1])
        return list(got[1])

    def _note_lost(self, reason: str) -> None:
        """Report, once until it is back, that the host cannot be reached; not before it was."""
        if self._lost is None and self._incarnation is not None:
            self._restarts[FRAMES] += 1
            self._news.append(Restarted(process=FRAMES, cause=reason, count=self._restarts[FRAMES]))
        self._lost = reason

    def _begin(self) -> None:
        """Begin the camera on its host, where things stand. Raises HostUnavailable, and ConfigError if that has another
        version of this program."""
        identity = msgspec.json.decode(self._host.call("identity", limit_s=CALL_LIMIT_S), type=HostIdentity)
        here = version(DISTRIBUTION)
        if identity.version != here:
            raise ConfigError(
                f"the node {identity.address} has {DISTRIBUTION} {identity.version}, this machine {here}; install the "
                "same version on every node"
            )
        if identity.incarnation != self._incarnation or self._started is None:
            if self._incarnation is not None and self._lost is None:
                self._note_lost(f"{self._host.name} was started again")
            config = self._continuity.next_config()
            start = replace(self._place(), config=config.model_dump_json(), verdict=self._continuity.verdict)
            self._incarnation, self._started, self._seen = identity.incarnation, msgspec.json.encode(start), 0
            self._routed = start.targets
            self._behind_ns = identity.ahead_ns - (time.time_ns() - time.monotonic_ns())
            self._news.append(Notice(code=MOVED, message=f"runs on the node {identity.address} ({identity.node[:8]})"))
        self._host.call("begin", self._started, limit_s=CALL_LIMIT_S)
        if self._continuity.pending_query is not None:
            self.send(WorkerCommand(query=self._continuity.pending_query))

    def _route(self) -> None:
        """Send the host the addresses of the answer servers, if they have changed."""
        targets = self._place().targets
        if targets != self._routed:
            try:
                self._host.call("route", targets, limit_s=CALL_LIMIT_S)
            except HostUnavailable:
                return
            self._routed = targets

    def _send_all(self) -> None:
        try:
            while self._unsent:
                self._host.call("command", msgspec.json.encode(self._unsent[0]), limit_s=CALL_LIMIT_S)
                del self._unsent[0]
        except HostUnavailable as error:
            self._note_lost(str(error))


def run_in_actor(
    config: Config,
    host: ClusterActor,
    place: Callable[[], CameraStart],
    control: RunControl | None = None,
    clock: Clock | None = None,
) -> Run:
    """Opens a run whose frames are read on a node of a cluster; waits until the source is open there.

    Raises what `Run` raises.
    """
    answer = config.answer
    model = answer.server or answer.model or "the bundled model"
    return Run(config, lambda run: FrameActor(run, host, place), clock, control=control, model=model)
