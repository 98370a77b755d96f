"""Run of one camera on a node of a cluster, as the command sees it: frames are there, outputs are here."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

import msgspec
from msgspec.structs import replace

from stream.answer.model import CONFIGURED
from stream.clock import Clock
from stream.config import Config
from stream.control import RunControl
from stream.errors import ConfigError, TransportError
from stream.events import Event, FrameReady, Notice, Restarted, VerdictChanged
from stream.fleet.on_ray.cluster import ClusterActor, HostUnavailable
from stream.fleet.on_ray.hosts import DISTRIBUTION
from stream.fleet.on_ray.messages import CameraStart, HostIdentity
from stream.media import AllocationOverlay
from stream.runtime.worker_messages import Report, WorkerCommand, unpack_report
from stream.runtime.worker_run import FRAMES, WorkerRun

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


class RemoteRun(WorkerRun):
    """Run whose frames are read on a node of a cluster.

    Making one waits until the source is open there. Where the node is lost, Ray starts the host on another one, and the
    run goes on: numbers and times continue. `place` is called with nothing and returns what a camera needs on its host
    beside its configuration.
    """

    def __init__(
        self,
        config: Config,
        host: ClusterActor,
        place: Callable[[], CameraStart],
        control: RunControl | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(config, clock, CONFIGURED, control)
        self._host = host
        self._place = place
        self._incarnation: str | None = None
        self._started: bytes | None = None
        self._seen = 0
        self._behind_ns = 0
        self._lost: str | None = None
        self._restarts_of: Counter[str] = Counter()
        self._verdict: str | None = None
        self._untold: list[Event] = []
        self._routed: list[str | None] = []
        try:
            limit_s = config.capture.open_timeout_s + PLACE_LIMIT_S
            within = f"within {limit_s:.0f} s; `ray status` shows whether the cluster has room"
            self._open(limit_s, f"no node has opened the source {within}")
        except BaseException:
            host.kill()
            raise

    def processes(self) -> dict[str, int]:
        """None: they are on another machine."""
        return {}

    def take_overlay(self, slot: int) -> AllocationOverlay:
        """Raises TransportError: pictures stay on the camera's node."""
        raise TransportError(f"the picture {slot} lies on another machine")

    def _model_name(self) -> str:
        """The model is loaded elsewhere, so nothing is looked for on this machine."""
        answer = self._config.answer
        return answer.server or answer.model or "the bundled model"

    @contextmanager
    def _running(self) -> Iterator[Iterator[Event]]:
        try:
            yield self._events()
        finally:
            self._host.kill()

    def _as_whole(self, event: Event) -> Event | None:
        if isinstance(event, FrameReady):
            event = replace(
                event, capture_ns=event.capture_ns + self._behind_ns, ready_ns=event.ready_ns + self._behind_ns
            )
        elif isinstance(event, Restarted):
            self._restarts_of[event.process] += 1
            event = replace(event, count=self._restarts_of[event.process])
        elif isinstance(event, VerdictChanged):
            if event.to == self._verdict:
                return None
            self._verdict = event.to
        return super()._as_whole(event)

    def _restarts(self, sent: WorkerCommand) -> Iterable[Event]:
        untold, self._untold = self._untold, []
        return untold

    def _is_gone(self) -> bool:
        return self._lost is not None

    def _receive(self) -> Sequence[Report]:
        """Return the reports that are new; begins the camera on a host that was started again."""
        try:
            got = self._host.call("reports", self._seen, WAIT_S, limit_s=WAIT_S + CALL_LIMIT_S)
            if got is None or (self._incarnation is not None and got[0] != self._incarnation):
                self._begin()
                return ()
        except HostUnavailable as error:
            self._note_lost(str(error))
            time.sleep(PAUSE_S)
            return ()
        self._lost = None
        self._route()
        reports = [unpack_report(data) for data in got[1]]
        self._seen += len(reports)
        return reports

    def _note_lost(self, reason: str) -> None:
        """Tell, once until it is back, that the host cannot be reached; not before it was."""
        if self._lost is None and self._incarnation is not None:
            self._restarts_of[FRAMES] += 1
            self._untold.append(Restarted(process=FRAMES, cause=reason, count=self._restarts_of[FRAMES]))
        self._lost = reason

    def _begin(self) -> None:
        """Begin the camera on its host, where things stand. Raises HostUnavailable, and ConfigError where that has
        another version of this program."""
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
            start = self._place()
            start = msgspec.structs.replace(start, config=config.model_dump_json(), verdict=self._continuity.verdict)
            self._incarnation, self._started, self._seen = identity.incarnation, msgspec.json.encode(start), 0
            self._routed = start.targets
            self._behind_ns = identity.ahead_ns - (time.time_ns() - time.monotonic_ns())
            self._untold.append(
                Notice(code=MOVED, message=f"runs on the node {identity.address} ({identity.node[:8]})")
            )
        self._host.call("begin", self._started, limit_s=CALL_LIMIT_S)
        if self._continuity.pending_query is not None:
            self._send(WorkerCommand(query=self._continuity.pending_query))

    def _route(self) -> None:
        """Tell the host where the answer servers are, where that has changed."""
        targets = self._place().targets
        if targets != self._routed:
            try:
                self._host.call("route", targets, limit_s=CALL_LIMIT_S)
            except HostUnavailable:
                return
            self._routed = targets

    def _pass_on(self, sent: WorkerCommand) -> WorkerCommand:
        try:
            return super()._pass_on(sent)
        except HostUnavailable as error:
            self._note_lost(str(error))
            return sent if not self._control.ending else WorkerCommand(end=True, cancel=self._control.cancelled)

    def _send(self, command: WorkerCommand) -> None:
        """Send a command. Raises HostUnavailable."""
        self._host.call("command", msgspec.json.encode(command), limit_s=CALL_LIMIT_S)

    def _fail(self, error: Exception, message: str) -> None:
        """Have a host started again whose source was lost; any other error ends the run."""
        if not self._may_come_back(error) or not self._continuity.frames_before:
            raise error
        log.debug("%s: the source cannot be opened there: %s", self._host.name, message)
        self._host.restart()
