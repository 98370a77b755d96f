"""Hosts on the nodes of a cluster: actors that each run one camera, or one answer server.

Each runs in a thread what the command would run on one machine; its methods are called by the command.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version

import msgspec

from stream.answer.server_statistics import ServerStatistics
from stream.config import Config
from stream.control import Command, RunControl, describe
from stream.events import Started, Summary, pack_event
from stream.runtime.worker_messages import (
    DropReport,
    SourceOpened,
    WorkerFailed,
    WorkerFinished,
    pack_report,
)
from stream.transport.security import ServerCurve


class HostIdentity(msgspec.Struct, frozen=True):
    """Host of a camera. `ahead_ns` is by how much the Unix time of its node is ahead of its monotonic time."""

    node: str
    address: str
    version: str
    ahead_ns: int


class ServerState(msgspec.Struct, frozen=True):
    """State of an answer server: "loading", "ok", "draining", "stalled", "drained", "lost" (it does not reply), or
    "failed" with class and message of the error. `wait_p95_s`: p95 of the wait for a turn over the last minute."""

    status: str
    endpoint: str = ""
    wait_p95_s: float = 0.0
    error: str = ""
    message: str = ""


DISTRIBUTION = "arr-coc-stream"

WAIT_S = 0.5
"""Longest time between two batches of reports: an empty one is a sign of life."""

GATHER_S = 0.05
"""Reports that come within this time after the first one share its batch: a batch costs more than a report."""

THREADS_OF_RAY = "OMP_NUM_THREADS"
"""Ray sets this to the CPUs that an actor asks for, or to 1; the model decides for itself."""


class CameraHost:
    """Host of one camera: a supervised run, whose reports Ray streams to the command."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._control = RunControl()
        # reports that may wait for the command before the camera waits
        self._reports: queue.Queue[bytes | None] = queue.Queue(2_048)
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        """Name in Ray's dashboard and logs."""
        return self._name

    def identity(self) -> bytes:
        """Return a HostIdentity in JSON, which another version of this program can read too."""
        from stream.extensions.fleet.on_ray.cluster import node_address, node_id

        ahead_ns = time.time_ns() - time.monotonic_ns()
        return msgspec.json.encode(HostIdentity(node_id(), node_address(), version(DISTRIBUTION), ahead_ns))

    def run(self, config: Config) -> Iterator[list[bytes]]:
        """Run the camera, and yield batches of packed reports until it has ended."""
        if self._thread is not None:
            os._exit(1)  # the command has lost reports of the run before: Ray starts this process again
        self._thread = threading.Thread(target=self._watch, args=(config,), name="camera", daemon=True)
        self._thread.start()
        report: bytes | None = b""
        while report is not None:
            batch = []
            try:
                report = self._reports.get(timeout=WAIT_S)
                time.sleep(GATHER_S)
                while report is not None:
                    batch.append(report)
                    report = self._reports.get_nowait()
            except queue.Empty:
                pass
            yield batch

    def command(self, command: Command) -> None:
        """Pass a command on to the run."""
        self._control.send(command)

    def _watch(self, config: Config) -> None:
        from stream.runtime.frame_process import run_in_child

        os.environ.pop(THREADS_OF_RAY, None)
        try:
            run = run_in_child(config, control=self._control, standalone=False)
            self._reports.put(pack_report(SourceOpened(run.source_info, run.backend, run.kernel)))
            reported_s = time.monotonic()
            for event in run.run():
                if not isinstance(event, (Started, Summary)):
                    self._reports.put(pack_event(event))
                if time.monotonic() - reported_s > 1.0:
                    reported_s = time.monotonic()
                    self._reports.put(pack_report(DropReport(run.drops())))
            self._reports.put(pack_report(DropReport(run.drops())))
            self._reports.put(pack_report(WorkerFinished()))
        except Exception as error:
            self._reports.put(pack_report(WorkerFailed(type(error).__name__, describe(error))))
        self._reports.put(None)


class AnswerHost:
    """Host of one answer server, which listens at an address of its node for holders of the fleet's key. Ray keeps its
    arguments, and starts it again with them."""

    def __init__(self, name: str, config: Config, curve: ServerCurve, model_loader: str) -> None:
        self._name = name
        # The port of the metrics is the command's.
        self._config = config.with_values({"metrics.port": None})
        self._control = RunControl()
        self._statistics = ServerStatistics()
        self._endpoint = ""
        self._ended: ServerState | None = None
        threading.Thread(target=self._serve, args=(curve, model_loader), name="answers", daemon=True).start()

    def __repr__(self) -> str:
        """Name in Ray's dashboard and logs."""
        return self._name

    def state(self) -> ServerState:
        """Return the state of the server."""
        if self._ended is not None:
            return self._ended
        figures = self._statistics.figures()
        status, reason = self._statistics.status(self._config.pipeline.timeout_s, draining=self._control.ending)
        return ServerState(status, self._endpoint, figures.wait_p95_s, message=reason or "")

    def drain(self) -> None:
        """Grant no more turns; answers under way end."""
        self._control.end()

    def _serve(self, curve: ServerCurve, model_loader: str) -> None:
        from stream.extensions.fleet.on_ray.cluster import node_address
        from stream.runtime.answer_worker import serve_answers

        os.environ.pop(THREADS_OF_RAY, None)
        try:
            address = node_address()
            with socket.create_server((address, 0)) as bound:
                self._endpoint = f"tcp://{address}:{bound.getsockname()[1]}"
            serve_answers(
                self._config,
                self._endpoint,
                lambda: None,
                self._control,
                model_loader,
                curve=curve,
                statistics=self._statistics,
            )
            self._ended = ServerState("drained")
        except Exception as error:
            self._ended = ServerState("failed", error=type(error).__name__, message=describe(error))
