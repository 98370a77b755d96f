"""The answer stage as a process: its entry point, the handle that starts and stops it, and `serve-answers`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import msgspec

from stream.answer.client_table import ServerOptions
from stream.answer.model import QWEN, load_answer_model
from stream.answer.scheduler import AnswerEndpoint
from stream.answer.server import AnswerServer
from stream.clock import Clock, MonotonicClock
from stream.config import Config
from stream.control import CancelledError, RunControl, signals_handled
from stream.errors import ConfigError, TransportError
from stream.protocol.buffers import SnapshotReader, SnapshotWriter
from stream.recording.identity import answer_provenance
from stream.runtime.child import ChildProcess, Heartbeat, ProcessSupervisor, RestartPolicy
from stream.runtime.worker_messages import AnswerWorkerConfig
from stream.transport import SocketDirectory, Transport, ipc_endpoint, private_directory
from stream.transport.security import client_curve, server_curve

ANSWERS = "answers"
"""What the answer process is called in events and metrics."""


def restart_policy(config: Config, *, restart: bool) -> RestartPolicy:
    """What `pipeline` says of restarts."""
    pipeline = config.pipeline
    return RestartPolicy(restart=restart, limit=pipeline.restart_limit, heartbeat_s=pipeline.heartbeat_s)


class AnswerWorker:
    """A process of this run's own: its address from the beginning, the process itself from `start` on."""

    def __init__(self, config: Config, speaker: str, clock: Clock, *, restart: bool) -> None:
        self._config = config
        self._speaker = speaker
        self._clock = clock
        self._restart = restart
        self._supervisor: ProcessSupervisor | None = None
        with ExitStack() as stack:
            self._directory = stack.enter_context(private_directory())
            self.snapshot = stack.enter_context(closing(SnapshotWriter()))
            self.endpoint = ipc_endpoint(self._directory)
            self._stack = stack.pop_all()

    @property
    def reach(self) -> AnswerEndpoint:
        """How the allocate stage of this process reaches it."""
        return AnswerEndpoint(self.endpoint, snapshot=self.snapshot, hung=self.hung)

    def start(self) -> ProcessSupervisor:
        """Starts the process; whoever calls this watches and stops it."""
        self._supervisor = ProcessSupervisor(
            ANSWERS, self._start_process, restart_policy(self._config, restart=self._restart), self._clock
        )
        return self._supervisor

    def hung(self) -> None:
        """It has said nothing for too long."""
        if self._supervisor is not None:
            self._supervisor.child.kill(hung_s=self._config.pipeline.timeout_s)

    def close(self) -> None:
        """Gives back what the process shared; to be called when it has been stopped."""
        self._stack.close()

    def _start_process(self) -> ChildProcess:
        descriptor = self.snapshot.descriptor
        return start_answer_process(self._config, self._speaker, self.endpoint, self._directory, descriptor)


class SharedAnswerWorker:
    """One answer process for several runs of this program, one after another: the model is loaded once.

    It is started with the first run, and again with the next one after it died.
    """

    def __init__(self, config: Config, speaker: str = QWEN) -> None:
        self._answers = AnswerWorker(config, speaker, MonotonicClock(), restart=config.pipeline.restart is True)
        self._supervisor: ProcessSupervisor | None = None

    @property
    def reach(self) -> AnswerEndpoint:
        return self._answers.reach

    def supervisor(self) -> ProcessSupervisor:
        """The running process, to be watched by the run that needs it, and stopped by `close` only."""
        if self._supervisor is not None and self._supervisor.child.exit_error() is not None:
            self._supervisor.stop()
            self._supervisor = None
        self._supervisor = self._supervisor or self._answers.start()
        return self._supervisor

    def close(self) -> None:
        if self._supervisor is not None:
            self._supervisor.stop()
        self._answers.close()


def remote_endpoint(config: Config) -> AnswerEndpoint:
    """The answer stage that `answer.server` names. Raises ConfigError where its address or the keys are no good."""
    assert config.answer.server is not None
    curve = client_curve(config.network, config.answer.server)
    return AnswerEndpoint(config.answer.server, curve=curve, supervised=False)


def start_answer_process(
    config: Config, speaker: str, endpoint: str, directory: SocketDirectory, snapshot: int
) -> ChildProcess:
    """Starts the answer stage; it is reached at `endpoint`, and removes `directory` where its parent cannot."""
    threads = answer_threads()
    child = ChildProcess("answer", "stream.runtime.answer_worker", (snapshot,), {"OMP_NUM_THREADS": str(threads)})
    orders = AnswerWorkerConfig(
        endpoint, directory, snapshot, child.heartbeat_writer, threads, speaker, config.model_dump_json()
    )
    child.send_line(msgspec.json.encode(orders))
    return child


def answer_threads() -> int:
    """Threads for the model: all cores but one, which the frame stages keep."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


def main() -> int:
    """The child: runs the answer stage until its parent is gone."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    orders = msgspec.json.decode(line, type=AnswerWorkerConfig)
    threading.Thread(target=_follow_parent, args=(orders.directory,), name="lifeline", daemon=True).start()
    heartbeat = Heartbeat(orders.heartbeat)

    import torch

    torch.set_num_threads(orders.threads)
    config = Config.model_validate_json(orders.config)
    transport = Transport()
    stage = AnswerServer(
        lambda: load_answer_model(orders.speaker, config),
        ServerOptions(orders.endpoint, ready=heartbeat.ready, answering=lambda: answer_provenance(config)),
        transport,
        RunControl(),
        SnapshotReader(orders.snapshot),
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


def _follow_parent(directory: SocketDirectory) -> None:
    """Ends this process when stdin ends: the parent is gone or wants no more, and may not be able to tidy up."""
    sys.stdin.buffer.read()
    directory.remove()
    os._exit(1)


def serve_answers(
    config: Config, endpoint: str, ready: Callable[[], None], control: RunControl | None = None, speaker: str = QWEN
) -> None:
    """Loads the model and answers whoever joins at `endpoint`, until the control is cancelled or a signal comes.

    `ready` is called once the model has been loaded. For the main thread, unless `control` is given. Raises ConfigError
    where the address or the keys are no good, ModelError where the model is not.
    """
    curve = server_curve(config.network, endpoint)
    stopping = control or RunControl()
    transport = Transport()
    loaded = False

    def loaded_now() -> None:
        nonlocal loaded
        loaded = True
        ready()

    place = ServerOptions(
        endpoint,
        encode=config.answer.encode,
        curve=curve,
        shared=True,
        ready=loaded_now,
        answering=lambda: answer_provenance(config),
    )
    stage = AnswerServer(lambda: load_answer_model(speaker, config), place, transport, stopping)
    try:
        if control is None:
            with _signals_cancel(stopping, lambda: not loaded):
                stage.run()
        else:
            stage.run()
    except CancelledError:
        pass
    except TransportError as error:
        raise ConfigError(str(error)) from error
    finally:
        transport.close()


@contextmanager
def _signals_cancel(control: RunControl, loading: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """While inside: the first signal cancels; a second one, or one while a model is loading, interrupts."""

    def on_signal(number: signal.Signals) -> None:
        if number == signal.SIGHUP and control.cancelled:
            return
        if control.cancelled or loading():
            raise KeyboardInterrupt
        control.cancel()

    with signals_handled(on_signal):
        yield


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # skips taking the model apart, which the parent would wait for
