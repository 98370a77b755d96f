"""Answer server in a process of its own: how a run starts it, its entry point, and `serve-answers`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import msgspec

from arr_coc.errors import OptionError, counted
from stream.answer.admission import ServerOptions
from stream.answer.model import CONFIGURED, AnswerModel, load_answer_model
from stream.answer.scheduler import AnswerEndpoint
from stream.answer.server import AnswerServer
from stream.answer.server_statistics import LOADING, ServerStatistics
from stream.clock import Clock, MonotonicClock
from stream.config import Config, server_addresses
from stream.control import CancelledError, RunControl, signals_handled
from stream.errors import ConfigError, TransportError
from stream.monitor.service_manager import ServiceManager, ServiceState
from stream.protocol.buffers import SharedFrameReader, SharedFrameWriter
from stream.protocol.device_pixels import IpcPixelReceiver
from stream.recording.identity import answer_provenance
from stream.runtime.child import ChildProcess, Heartbeat, ProcessSupervisor, RestartPolicy
from stream.runtime.fork_server import ForkServer
from stream.runtime.worker_messages import AnswerWorkerConfig
from stream.sources.address import is_live_address
from stream.transport import SocketDirectory, Transport, ipc_endpoint, private_directory, remove_after_parent
from stream.transport.pool import ServerAddress, needs_pool
from stream.transport.security import client_curve, server_curve

ANSWERS = "answers"
"""Name of the answer process in events and metrics."""


SLOTS_MOST = 8
"""Slots of an answer process that several runs share, unless `answer.slots` says otherwise. With more, an answer of the
bundled model is hardly cheaper (benchmarks/README.md), and takes longer."""


class AnswerWorker:
    """Answer server in a process of its own: for one run, or for several one after another, which load the model once.

    Its address and its shared memory are there from the beginning, the process from `start` on. `lockstep`: frames
    wait for answers. `several`: number of runs that it answers for at once, where it may be more than one; then
    it answers them together where the model can, and outlives the failure of one answer; these
    send whole frames in messages. `forks` forks the process, where it is given.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock | None = None,
        *,
        restart: bool,
        lockstep: bool = False,
        several: int = 0,
        model_loader: str = CONFIGURED,
        forks: ForkServer | None = None,
    ) -> None:
        self._config = config
        self._several = several
        # A model behind an API needs no torch, which a forked process has.
        self._forks = forks if config.answer.api.url is None else None
        # The products of the bundled model are too small to share.
        self._threads = answer_threads(alone=lockstep and config.answer.model is not None)
        self._model_loader = model_loader
        self._clock = clock or MonotonicClock()
        self._policy = RestartPolicy.of(config.pipeline, restart=restart)
        self._supervisor: ProcessSupervisor | None = None
        with ExitStack() as stack:
            self._directory = stack.enter_context(private_directory())
            self.snapshot = stack.enter_context(closing(SharedFrameWriter()))
            self.address = ipc_endpoint(self._directory)
            self._stack = stack.pop_all()

    @property
    def endpoint(self) -> AnswerEndpoint:
        """The endpoint for the allocate stage of this process."""
        return AnswerEndpoint(self.address, snapshot=self.snapshot, on_timeout=self.kill_hung)

    def start(self) -> ProcessSupervisor:
        """Starts the process where none runs; returns its supervisor, which the run polls."""
        if self._supervisor is None or self._supervisor.child.exit_error() is not None:
            self._stop()
            self._supervisor = ProcessSupervisor(ANSWERS, self._start_process, self._policy, self._clock)
        return self._supervisor

    def kill_hung(self) -> None:
        """Kills the process, which has been silent for longer than `pipeline.timeout_s`."""
        if self._supervisor is not None:
            self._supervisor.child.kill(hung_s=self._config.pipeline.timeout_s)

    def close(self) -> None:
        """Stops the process, and gives back what it shared."""
        self._stop()
        self._stack.close()

    def _stop(self) -> None:
        if self._supervisor is not None:
            self._supervisor.child.stop()

    def _start_process(self) -> ChildProcess:
        descriptor = self.snapshot.descriptor
        return start_answer_process(
            self._config,
            self._model_loader,
            self.address,
            self._directory,
            descriptor,
            self._threads,
            several=self._several,
            forks=self._forks,
        )


@contextmanager
def early_answers(config: Config) -> Iterator[AnswerWorker | None]:
    """Answer process that loads its model while the rest of the command is imported and the source opened.

    None where the run has another answer server, or a live source, whose run starts its own. To be called before torch
    is imported: then the process is forked from this one, and torch is imported once.
    """
    own = config.answer.server is None and not config.pipeline.single_process
    if not own or is_live_address(config.source):
        yield None
        return
    lockstep = config.pipeline.answers == "lockstep" and not config.capture.realtime
    with ExitStack() as stack:
        forks = ForkServer.split_off() if config.answer.api.url is None else None
        if forks is not None:
            stack.enter_context(forks)
        worker = AnswerWorker(config, restart=config.pipeline.restart is True, lockstep=lockstep, forks=forks)
        stack.callback(worker.close)
        worker.start()
        yield worker


def remote_endpoint(config: Config) -> AnswerEndpoint:
    """Returns the endpoint that `answer.server` names. Raises ConfigError where an address or the keys are no good."""
    server = config.answer.server
    assert server is not None
    servers = tuple(ServerAddress(at, client_curve(config.network, at)) for at in server_addresses(server))
    if needs_pool(servers):
        return AnswerEndpoint(server, supervised=False, servers=servers, choice=config.answer.server_choice)
    return AnswerEndpoint(server, curve=servers[0].curve, supervised=False)


def start_answer_process(
    config: Config,
    model_loader: str,
    endpoint: str,
    directory: SocketDirectory,
    snapshot: int,
    threads: int,
    *,
    several: int = 0,
    forks: ForkServer | None = None,
) -> ChildProcess:
    """Starts an answer server at `endpoint`, which removes `directory` where its parent cannot."""
    environment = {"OMP_NUM_THREADS": str(threads)}
    child = ChildProcess("answer", "stream.runtime.answer_worker", (snapshot,), environment, forks=forks)
    worker = AnswerWorkerConfig(
        endpoint,
        directory,
        snapshot,
        child.heartbeat_writer,
        threads,
        model_loader,
        config.model_dump_json(),
        several,
    )
    child.send_line(msgspec.json.encode(worker))
    return child


def answer_threads(*, alone: bool) -> int:
    """Returns the threads for the model: all cores but one, which the frame stages keep. All of them if it is `alone`,
    as the frame stages wait for it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if alone else max(1, cores - 1)


def main() -> int:
    """Entry point of the process: runs the answer server until the parent is gone."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    worker = msgspec.json.decode(line, type=AnswerWorkerConfig)
    threading.Thread(target=_follow_parent, args=(worker.directory,), name="lifeline", daemon=True).start()
    heartbeat = Heartbeat(worker.heartbeat)

    config = Config.model_validate_json(worker.config)
    if config.answer.api.url is None:
        import torch

        torch.set_num_threads(worker.threads)
    transport = Transport()
    place = ServerOptions(
        worker.endpoint,
        shared=worker.several > 0,
        on_ready=heartbeat.ready,
        provenance=lambda: answer_provenance(config),
    )
    stage = AnswerServer(
        lambda: _load_for_several(worker, config),
        place,
        transport,
        RunControl(),
        SharedFrameReader(worker.snapshot),
        IpcPixelReceiver(),
    )
    try:
        stage.run()
    except CancelledError:
        return 0
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        transport.close()
    return 0


def _load_for_several(worker: AnswerWorkerConfig, config: Config) -> AnswerModel:
    """Load the model with slots for the runs, unless the configuration has some; with one where it takes no more."""
    slots = min(worker.several, SLOTS_MOST)
    if slots > config.answer.slots == 1:
        answer = config.answer.model_copy(update={"slots": slots})
        try:
            return load_answer_model(worker.model_loader, config.model_copy(update={"answer": answer}))
        except OptionError as error:
            print(f"one answer after the other: {error}", file=sys.stderr)
    return load_answer_model(worker.model_loader, config)


def _follow_parent(directory: SocketDirectory) -> None:
    """Ends this process when stdin ends: the parent is gone or has stopped it, and may not be able to tidy up."""
    sys.stdin.buffer.read()
    remove_after_parent(directory)
    os._exit(1)


def serve_answers(
    config: Config,
    endpoint: str,
    ready: Callable[[], None],
    control: RunControl | None = None,
    model_loader: str = CONFIGURED,
) -> bool:
    """Loads the model and serves clients at `endpoint`, until the control ends or is cancelled, or a signal comes.

    Returns True where it drained: no answer was under way any more. `ready` is called once the model has been loaded.
    For the main thread, unless `control` is given. Raises ConfigError where the address or the keys are no good,
    ModelError where the model is not, OutputError where the port of the metrics is taken.
    """
    curve = server_curve(config.network, endpoint)
    stopping = control or RunControl()
    statistics = ServerStatistics()
    place = ServerOptions(
        endpoint,
        encode=config.answer.encode,
        curve=curve,
        shared=True,
        on_ready=ready,
        provenance=lambda: answer_provenance(config),
        statistics=statistics,
    )
    with ExitStack() as stack:
        if config.output.metrics_port is not None:
            from stream.runtime.server_metrics import ServerMetrics

            stack.enter_context(closing(ServerMetrics(config, statistics, stopping)))
        manager = ServiceManager.of_environment(lambda: _service_state(config, statistics, stopping))
        if manager is not None:
            stack.callback(manager.close)
        transport = Transport()
        stack.callback(transport.close)
        if control is None:
            stack.enter_context(_signals_end(stopping, lambda: statistics.state == LOADING))
        try:
            AnswerServer(lambda: load_answer_model(model_loader, config), place, transport, stopping).run()
        except CancelledError:
            return False
        except TransportError as error:
            raise ConfigError(str(error)) from error
    return not stopping.cancelled


def _service_state(config: Config, statistics: ServerStatistics, control: RunControl) -> ServiceState:
    """Return the state of the server: ready with its model, and alive unless a turn is served without a word for too
    long."""
    figures, loading = statistics.figures(), statistics.state == LOADING
    status = "loading the model" if loading else f"{counted(figures.clients, 'client')}, {figures.waiting} waiting"
    alive = loading or figures.silent_s <= config.pipeline.timeout_s
    return ServiceState("draining" if control.ending else status, ready=not loading, alive=alive)


@contextmanager
def _signals_end(control: RunControl, loading: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Lets signals end a server inside the block: SIGTERM drains it, others cancel, and so does a second SIGTERM.

    One more, or one while the model is loading, ends it at once.
    """

    def on_signal(number: signal.Signals) -> None:
        if number == signal.SIGHUP and control.cancelled:
            return
        if loading() and number == signal.SIGTERM:
            raise SystemExit(0)
        if control.cancelled or loading():
            raise KeyboardInterrupt
        if number == signal.SIGTERM and not control.ending:
            control.end()
        else:
            control.cancel()

    with signals_handled(on_signal):
        yield


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # skips taking the model apart, which the parent would wait for
