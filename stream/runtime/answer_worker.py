"""Entry point of the answer process, and `serve-answers`: the same server for clients elsewhere."""

from __future__ import annotations

import logging
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
from stream.answer.server import AnswerServer
from stream.answer.server_statistics import LOADING, ServerStatistics
from stream.config import SLOTS_TOGETHER, Config
from stream.control import CancelledError, RunControl, signals_handled
from stream.errors import ConfigError, TransportError
from stream.extension.registry import parts_of
from stream.monitor.service_manager import ServiceManager, ServiceState
from stream.protocol.buffers import SharedFrameReader
from stream.protocol.device_pixels import IpcPixelReceiver
from stream.recording.identity import answer_provenance
from stream.runtime.child import Heartbeat
from stream.runtime.worker_log import ParentLog
from stream.runtime.worker_messages import AnswerWorkerConfig
from stream.transport import SocketDirectory, Transport, remove_after_parent
from stream.transport.security import ServerCurve, server_curve

log = logging.getLogger(__name__)

TRIM_EVERY_S = 60.0
"""Time between two times at which freed memory is given back to the system, which takes some milliseconds."""


def main() -> int:
    """Entry point of the process: runs the answer server until the parent is gone."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    worker = msgspec.json.decode(line, type=AnswerWorkerConfig)
    threading.Thread(target=_follow_parent, args=(worker.directory,), name="lifeline", daemon=True).start()
    heartbeat = Heartbeat(worker.heartbeat)
    ended = threading.Event()

    config = Config.decode(worker.config)
    if config.model_key is None:
        import torch

        from arr_coc.qwen.convert_dtype import trim_heap

        torch.set_num_threads(worker.threads)
        arguments = trim_heap, TRIM_EVERY_S, ended
        threading.Thread(target=give_memory_back, args=arguments, name="memory", daemon=True).start()
    transport = Transport()
    log_handler = ParentLog(transport, worker.reports_to)
    logging.getLogger().addHandler(log_handler)
    place = ServerOptions(
        worker.endpoint,
        shared=worker.runs > 0,
        on_ready=heartbeat.ready,
        provenance=lambda: answer_provenance(config),
    )
    stage = AnswerServer(
        lambda: _load_for_several(worker, config),
        place,
        transport,
        RunControl(),
        None if worker.snapshot is None else SharedFrameReader(worker.snapshot),
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
        ended.set()
        log_handler.close()
        transport.close()
    return 0


def give_memory_back(trim: Callable[[], None], every_s: float, ended: threading.Event) -> None:
    """Give freed memory back to the system, with `trim`, every `every_s` seconds until `ended` is set.

    glibc keeps what lies below a block that is in use. Tensors of many sizes come and go with every check of a watch:
    without this the process of two hours had 100 MiB more than it used.
    """
    while not ended.wait(every_s):
        trim()


def _load_for_several(worker: AnswerWorkerConfig, config: Config) -> AnswerModel:
    """Load the model with a slot for each run, unless the configuration sets them; with one if no more fit."""
    slots = min(worker.runs, SLOTS_TOGETHER)
    if config.answer.slots == 1 < slots:
        answer = config.answer.model_copy(update={"slots": slots})
        try:
            return load_answer_model(worker.model_loader, config.model_copy(update={"answer": answer}))
        except OptionError as error:
            log.warning("one answer after the other: %s", error)
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
    *,
    curve: ServerCurve | None = None,
    statistics: ServerStatistics | None = None,
) -> bool:
    """Loads the model and serves clients, until the control ends or is cancelled, or a signal comes.

    Args:
        config: Configuration of the server.
        endpoint: Address at which it listens.
        ready: Called once the model has been loaded.
        control: Ends the server; without it signals do, and the call must be in the main thread.
        model_loader: Name of the function that loads the model.
        curve: Keys of the server, by default those of the configuration.
        statistics: Collects the server's figures.

    Returns:
        True if it drained: no answer was in progress.

    Raises:
        ConfigError: The address or the keys are invalid.
        ModelError: The model cannot be loaded.
        OutputError: The metrics port is in use.
    """
    curve = curve or server_curve(config.network, endpoint)
    stopping = control or RunControl()
    statistics = statistics or ServerStatistics()
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
        for part in parts_of("serving", config, statistics, stopping):
            stack.enter_context(closing(part))
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
    figures = statistics.figures()
    loading = statistics.state == LOADING
    if loading:
        status = "loading the model"
    else:
        status = f"{counted(figures.clients, 'client')}, {figures.waiting} waiting"
    alive = loading or figures.silent_s <= config.pipeline.timeout_s
    return ServiceState("draining" if control.ending else status, ready=not loading, alive=alive)


@contextmanager
def _signals_end(control: RunControl, loading: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Context manager in which signals end a server: SIGTERM drains it, others cancel, and so does a second SIGTERM.

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
