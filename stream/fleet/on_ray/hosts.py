"""Hosts on the nodes of a cluster: the actors that run one camera, or one answer server, where Ray has placed them.

Each runs what the command would run on one machine, in a thread; its methods are called by the command. An actor that
Ray starts again knows nothing, and waits until it is begun again.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from urllib.error import HTTPError

import msgspec
import psutil

from stream.config import Config
from stream.control import RunControl, describe
from stream.events import Started, Summary, pack_event
from stream.fleet.on_ray.forwarder import Forwarder
from stream.fleet.on_ray.messages import AnswersStart, CameraStart, HostIdentity, KeyFiles, ReportQueue, ServerState
from stream.runtime.worker_messages import (
    DropReport,
    Report,
    SourceOpened,
    WorkerCommand,
    WorkerFailed,
    WorkerFinished,
    pack_report,
)
from stream.transport.http_replies import REPLY_BYTES_MAX, timed_opener

DISTRIBUTION = "arr-coc-stream"

DROPS_EVERY_S = 1.0

KEYS_PREFIX = "arr-coc-keys-"

SCRAPE_LIMIT_S = 1.0
"""Time for one page of the answer server; two of them are less than whoever asks for the state waits."""

THREADS_OF_RAY = "OMP_NUM_THREADS"
"""Ray sets this to the CPUs that an actor asks for, or to 1; the model decides for itself."""


class ClusterHost:
    """Base of both kinds of hosts: who they are, and a thread for their work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._incarnation = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._keys: str | None = None

    def __repr__(self) -> str:
        """Name in Ray's dashboard and logs."""
        return self._name

    def identity(self) -> bytes:
        """Return a HostIdentity in JSON."""
        from stream.fleet.on_ray.cluster import node_address, node_id

        return msgspec.json.encode(
            HostIdentity(
                incarnation=self._incarnation,
                node=node_id(),
                address=node_address(),
                version=version(DISTRIBUTION),
                pid=os.getpid(),
                ahead_ns=time.time_ns() - time.monotonic_ns(),
            )
        )

    def close(self) -> None:
        """Remove the keys; to be called before this process is killed."""
        if self._keys is not None:
            shutil.rmtree(self._keys, ignore_errors=True)

    def _begin(self, work: threading.Thread) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = work
                work.start()


class CameraHost(ClusterHost):
    """Host of one camera: a supervised run, whose reports the command fetches."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._outbox = ReportQueue()
        self._control = RunControl()
        self._forwarder: Forwarder | None = None
        self._targets: list[str | None] = []

    def begin(self, start: bytes) -> None:
        """Begin as a CameraStart in JSON says; a second call changes nothing."""
        told = msgspec.json.decode(start, type=CameraStart)
        self._begin(threading.Thread(target=self._run, args=(told,), name="camera", daemon=True))

    def reports(self, after: int, wait_s: float) -> tuple[str, list[bytes]] | None:
        """Return which incarnation this is, and its reports from number `after` on; None before it has begun."""
        if self._thread is None:
            return None
        return self._incarnation, self._outbox.take(after, wait_s)

    def command(self, line: bytes) -> None:
        """Take a WorkerCommand in JSON."""
        command = msgspec.json.decode(line, type=WorkerCommand)
        if command.query is not None:
            self._control.ask(command.query)
        if command.cancel:
            self._control.cancel()
        elif command.end is not None:
            self._control.end(command.end)

    def route(self, targets: list[str | None]) -> None:
        """Take where the answer servers are now."""
        with self._lock:
            self._targets = targets
            if self._forwarder is not None:
                self._forwarder.route(targets)

    def _report(self, report: Report) -> None:
        self._outbox.put(pack_report(report))

    def _run(self, start: CameraStart) -> None:
        try:
            with ExitStack() as stack:
                forwarder = self._open_forwarder(stack, start)
                self._keys = None if forwarder is None else key_folder(start.keys)
                self._watch(_served(start, forwarder, self._keys))
        except Exception as error:
            self._report(WorkerFailed(type(error).__name__, describe(error)))

    def _watch(self, config: Config) -> None:
        from stream.runtime.frame_process import run_in_child

        os.environ.pop(THREADS_OF_RAY, None)
        run = run_in_child(config, control=self._control, alone=False)
        self._report(SourceOpened(run.source_info, run.backend, run.kernel))
        reported_s = time.monotonic()
        for event in run.run():
            if not isinstance(event, (Started, Summary)):
                self._outbox.put(pack_event(event))
            if time.monotonic() - reported_s > DROPS_EVERY_S:
                reported_s = time.monotonic()
                self._report(DropReport(run.drops()))
        self._report(DropReport(run.drops()))
        self._report(WorkerFinished())

    def _open_forwarder(self, stack: ExitStack, start: CameraStart) -> Forwarder | None:
        if not start.servers:
            return None
        forwarder = Forwarder(start.servers)
        stack.callback(forwarder.close)
        with self._lock:
            self._forwarder = forwarder
            forwarder.route(self._targets or start.targets)
        return forwarder


class AnswerHost(ClusterHost):
    """Host of one answer server, which listens at an address of its node for holders of the fleet's key."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._control = RunControl()
        self._endpoint = ""
        self._metrics_port = 0
        self._newest: ServerState | None = None
        self._ended: ServerState | None = None

    def begin(self, start: bytes) -> None:
        """Begin as an AnswersStart in JSON says; a second call changes nothing."""
        told = msgspec.json.decode(start, type=AnswersStart)
        self._begin(threading.Thread(target=self._run, args=(told,), name="answers", daemon=True))

    def state(self) -> bytes:
        """Return a ServerState in JSON."""
        return msgspec.json.encode(self._state())

    def drain(self) -> None:
        """Grant no more turns; answers under way end."""
        self._control.end()

    def _state(self) -> ServerState:
        if self._ended is not None or self._thread is None:
            return self._ended or ServerState("waiting")
        try:
            health = msgspec.json.decode(self._page("healthz"), type=dict)
            figures = _gauges(self._page("metrics").decode())
        except (OSError, HTTPException, msgspec.DecodeError):  # it has no pages yet, or its process is busy
            return self._newest or ServerState("loading", self._endpoint)
        self._newest = ServerState(
            status=health["status"],
            endpoint=self._endpoint,
            clients=health["clients"],
            turns_waiting=health["turns_waiting"],
            wait_p95_s=figures.get("arr_coc_server_turn_wait_p95_seconds", 0.0),
            message=health["reason"] or "",
        )
        return self._newest

    def _page(self, name: str) -> bytes:
        try:
            url = f"http://127.0.0.1:{self._metrics_port}/{name}"
            with timed_opener().open(url, timeout=SCRAPE_LIMIT_S) as page:
                return bytes(page.read(REPLY_BYTES_MAX))
        except HTTPError as refused:
            return refused.read(REPLY_BYTES_MAX)

    def _run(self, start: AnswersStart) -> None:
        from stream.fleet.on_ray.cluster import node_address
        from stream.runtime.answer_worker import serve_answers

        os.environ.pop(THREADS_OF_RAY, None)
        try:
            self._keys = key_folder(start.keys)
            self._metrics_port = _free_port("127.0.0.1")
            self._endpoint = f"tcp://{node_address()}:{_free_port(node_address())}"
            config = Config.model_validate_json(start.config)
            output = config.output.model_copy(update={"metrics_port": self._metrics_port})
            network = config.network.model_copy(update={"keys": self._keys, "plain_tcp": False})
            config = config.model_copy(update={"output": output, "network": network})
            serve_answers(config, self._endpoint, lambda: None, self._control, start.model_loader)
            self._ended = ServerState("drained")
        except Exception as error:
            self._ended = ServerState("failed", error=type(error).__name__, message=describe(error))


def key_folder(files: KeyFiles) -> str:
    """Return a new folder with these key files, by their relative paths, that only this user can enter.

    Folders of processes that were killed are removed first: a process that Ray kills cannot tidy up.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{KEYS_PREFIX}*"):
        pid = left.name.removeprefix(KEYS_PREFIX).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=f"{KEYS_PREFIX}{os.getpid()}-")
    for name, content in files.items():
        path = Path(folder) / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(content)
    return folder


def _served(start: CameraStart, forwarder: Forwarder | None, keys: str | None) -> Config:
    """Return a camera's configuration on its host: with the addresses of the forwarder, and the fleet's keys."""
    config = Config.model_validate_json(start.config)
    if forwarder is None:
        return config
    answer = config.answer.model_copy(update={"server": ",".join(forwarder.addresses), "model": None})
    network = config.network.model_copy(update={"keys": keys, "plain_tcp": False})
    return config.model_copy(update={"answer": answer, "network": network})


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as bound:
        return int(bound.getsockname()[1])


def _gauges(page: str) -> dict[str, float]:
    """Return the values without labels of a page in Prometheus' text format."""
    lines = (line.split() for line in page.splitlines() if line and not line.startswith("#") and "{" not in line)
    return {parts[0]: float(parts[1]) for parts in lines if len(parts) == 2}
