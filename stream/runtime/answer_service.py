"""Answer process of this machine: supervised by a thread, for as long as a run holds it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import msgspec

from arr_coc.types import NS_PER_S
from stream.answer.connection import AnswerEndpoint
from stream.answer.model import CONFIGURED
from stream.clock import Clock, MonotonicClock
from stream.config import ASSIGNED_SERVERS, Config, server_addresses
from stream.control import RunControl
from stream.events import Restarted
from stream.protocol.buffers import SharedFrameWriter
from stream.runtime.child import ChildProcess, ProcessSupervisor
from stream.runtime.fork_server import ForkServer
from stream.runtime.worker_log import ChildLog
from stream.runtime.worker_messages import AnswerWorkerConfig
from stream.sources.address import is_live_address
from stream.transport import SocketDirectory, ipc_endpoint, private_directory
from stream.transport.pool import ServerAddress, needs_pool
from stream.transport.security import client_curve

ANSWERS = "answers"
"""Name of the answer process in events and metrics."""

POLL_S = 0.05
"""Time between two checks of the process."""


class AnswerService:
    """Answer process for the runs that hold it. It supervises itself, and is reference counted.

    The first holder starts the process and the last one stops it. A thread starts it again after a death; in a crash
    loop, or if `restart` is false, the thread fails the runs instead, and the next holder starts another process.

    Args:
        config: The model, and the options that all runs have in common.
        restart: Whether a process that dies is started again.
        lockstep: Whether frames wait for answers, so that a large model may use all cores.
        runs: Number of runs that are answered at once; 0 for one run, or one run after another. With several, the
            failure of one answer does not end the process, and frames travel in messages instead of shared memory.
        forks: Fork server for the process.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock | None = None,
        *,
        restart: bool = True,
        lockstep: bool = False,
        runs: int = 0,
        model_loader: str = CONFIGURED,
        forks: ForkServer | None = None,
    ) -> None:
        self._config = config
        self._clock = clock or MonotonicClock()
        self._options = config.pipeline.model_copy(update={"restart": restart})
        # The matrix products of the bundled model are too small to share.
        self._threads = answer_threads(exclusive=lockstep and config.answer.model is not None)
        self._runs = runs
        self._model_loader = model_loader
        # A model of another program needs no torch, which a forked process has.
        self._forks = forks if config.model_key is None else None
        self._lock = threading.Lock()
        self._holders: dict[int, tuple[RunControl | None, deque[Restarted]]] = {}
        self._supervisor: ProcessSupervisor | None = None
        self._child_log: ChildLog
        self._ended = threading.Event()
        self._resources = ExitStack()
        self._started_ns = 0
        self.address = ""
        self.snapshot: SharedFrameWriter | None = None

    @property
    def concurrent(self) -> bool:
        """True if the process answers several runs at once, so that it is no run's own."""
        return self._runs > 0

    @property
    def pid(self) -> int | None:
        """Id of the process; None while nothing holds it. For any thread."""
        supervisor = self._supervisor
        if supervisor is None:
            return None
        return supervisor.child.pid

    @property
    def endpoint(self) -> AnswerEndpoint:
        """Endpoint for the allocate stage of a holder in this process."""
        return AnswerEndpoint(self.address, snapshot=self.snapshot, on_timeout=self.report_hung)

    @contextmanager
    def hold(self, control: RunControl | None = None) -> Iterator[deque[Restarted]]:
        """Keeps the process running inside the block; gives the restarts from now on, which are appended as they come.

        A process that cannot be kept running fails `control`.
        """
        restarts: deque[Restarted] = deque()
        with self._lock:
            if self._supervisor is None or self._is_over(self._supervisor):
                self._stop()
                self._start()
            self._holders[id(restarts)] = control, restarts
        try:
            yield restarts
        finally:
            with self._lock:
                del self._holders[id(restarts)]
                if not self._holders:
                    self._stop()

    def report_hung(self) -> None:
        """Kills the process, which has been silent for longer than `pipeline.timeout_s`. For any thread.

        Several runs report the same silence: a process that was started since has not been silent for that time.
        """
        limit_s = self._config.pipeline.timeout_s
        with self._lock:
            if self._supervisor is not None and (self._clock.now_ns() - self._started_ns) / NS_PER_S > limit_s:
                self._supervisor.child.kill(hung_s=limit_s)

    def _is_over(self, supervisor: ProcessSupervisor) -> bool:
        """Returns whether the process is dead and is not started again."""
        return self._ended.is_set() or (not self._options.restart and supervisor.child.exit_error() is not None)

    def _start(self) -> None:
        with ExitStack() as stack:
            directory = stack.enter_context(private_directory())
            self.address = ipc_endpoint(directory)
            self._child_log = stack.enter_context(closing(ChildLog(_reports_to(directory))))
            # Shared by several runs, the memory of one frame would be overwritten by another run's.
            if self.concurrent:
                self.snapshot = None
            else:
                self.snapshot = stack.enter_context(closing(SharedFrameWriter()))
            supervisor = ProcessSupervisor(ANSWERS, lambda: self._start_process(directory), self._options, self._clock)
            stack.callback(lambda: supervisor.child.stop())
            self._ended = threading.Event()
            stack.callback(self._ended.set)
            self._resources = stack.pop_all()
        self._supervisor = supervisor
        arguments = supervisor, self._ended
        threading.Thread(target=self._supervise, args=arguments, name=ANSWERS, daemon=True).start()

    def _stop(self) -> None:
        self._supervisor = None
        self._resources.close()

    def _start_process(self, directory: SocketDirectory) -> ChildProcess:
        self._started_ns = self._clock.now_ns()
        if self.snapshot is None:
            descriptor = None
        else:
            descriptor = self.snapshot.descriptor
        inherited = () if descriptor is None else (descriptor,)
        environment = {"OMP_NUM_THREADS": str(self._threads)}
        child = ChildProcess("answer", "stream.runtime.answer_worker", inherited, environment, forks=self._forks)
        worker = AnswerWorkerConfig(
            endpoint=self.address,
            reports_to=_reports_to(directory),
            directory=directory,
            snapshot=descriptor,
            heartbeat=child.heartbeat_writer,
            threads=self._threads,
            model_loader=self._model_loader,
            config=self._config.encode(),
            runs=self._runs,
        )
        child.send_line(msgspec.json.encode(worker))
        return child

    def _supervise(self, supervisor: ProcessSupervisor, ended: threading.Event) -> None:
        while not ended.wait(POLL_S):
            with self._lock:
                if ended.is_set():
                    return
                self._child_log.write()
                try:
                    restarted = supervisor.poll()
                except Exception as error:
                    # What is shared stays until the last holder is gone: a run may be writing a frame into it.
                    ended.set()
                    for control, _ in self._holders.values():
                        if control is not None:
                            control.fail(error)
                    return
                if restarted is not None:
                    for _, restarts in self._holders.values():
                        restarts.append(restarted)


def _reports_to(directory: SocketDirectory) -> str:
    return ipc_endpoint(directory, "reports")


@contextmanager
def early_answers(config: Config) -> Iterator[AnswerService | None]:
    """Answer process that loads its model while the rest of the command is imported and the source opened.

    None if another server answers, and for a live source, whose run starts its own process. To be called before torch
    is imported: then the process is forked from this one, and torch is imported once.
    """
    starts_process = config.answer.server is None and not config.pipeline.single_process
    if not starts_process or is_live_address(config.source):
        yield None
        return
    lockstep = config.pipeline.answers == "lockstep" and not config.capture.realtime
    with ExitStack() as stack:
        if config.model_key is None:
            forks = ForkServer.split_off()
        else:
            forks = None
        if forks is not None:
            stack.enter_context(forks)
        service = AnswerService(config, restart=config.pipeline.restart is True, lockstep=lockstep, forks=forks)
        stack.enter_context(service.hold())
        yield service


def remote_endpoint(config: Config) -> AnswerEndpoint:
    """Returns the endpoint that `answer.server` names. Raises ConfigError for an unusable address or key."""
    server = config.answer.server
    assert server is not None
    if server == ASSIGNED_SERVERS:
        return AnswerEndpoint("the cluster", supervised=False, servers=())
    servers = tuple(ServerAddress(at, client_curve(config.network, at)) for at in server_addresses(server))
    if needs_pool(servers):
        return AnswerEndpoint(server, supervised=False, servers=servers, choice=config.answer.server_choice)
    return AnswerEndpoint(server, curve=servers[0].curve, supervised=False)


def answer_threads(*, exclusive: bool) -> int:
    """Returns the threads for the model: all cores but one, which the frame stages keep; all of them if these wait for
    the model, which is then `exclusive`."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return cores if exclusive else max(1, cores - 1)
