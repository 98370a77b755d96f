"""Frame worker in a child process: started again when it dies, and replaced by a spare one at once.

The spare one has everything imported. The answer process is another child of this process, so a frame process that dies
takes no loaded model with it.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from stream.answer.model import CONFIGURED
from stream.clock import Clock
from stream.config import Config
from stream.control import Command, RunControl, Stop, is_user_fixable
from stream.errors import SourceError
from stream.events import FrameReady, Restarted
from stream.runtime.answer_service import ANSWERS, AnswerService
from stream.runtime.child import ChildProcess, ProcessSupervisor, start_fork_server
from stream.runtime.fork_server import ForkServer
from stream.runtime.run import FRAMES, Run, picture_endpoints
from stream.runtime.worker_log import write_note
from stream.runtime.worker_messages import (
    AnswerTimeout,
    FrameWorkerConfig,
    Report,
    SourceOpened,
    WorkerFinished,
    WorkerNote,
    unpack_report,
)
from stream.transport import Transport, ipc_endpoint, private_directory

POLL_MS = 50
"""Time to wait for a report before the process is checked."""

OPEN_MARGIN_S = 60.0
"""Time beyond `capture.open_timeout_s` that a child may take to import its libraries on a busy machine."""

log = logging.getLogger(__name__)


class FrameProcess:
    """Frame stages of `run` in a supervised child process; holds the answer process.

    `config` is the whole run's. `answers` is an answer process shared with other runs; without it the run starts a
    separate one, unless its answer server is elsewhere. `forks` starts the processes and is closed by the caller;
    without it the run has a separate fork server. `standalone` is false for one of several runs of this process:
    it keeps no spare process, and names only the processes that are its own. `nice` is the niceness of the process.
    """

    def __init__(
        self,
        config: Config,
        run: Run,
        *,
        answers: AnswerService | None = None,
        forks: ForkServer | None = None,
        standalone: bool = True,
        nice: int = 0,
    ) -> None:
        self._continuity = run.continuity
        self._model_loader = run.model_loader
        self._standalone = standalone
        self._nice = nice
        self._spare: ChildProcess | None = None
        self._opened = self._ending = False
        self._restarts: deque[Restarted] = deque()
        self._open_limit_s = config.capture.open_timeout_s + OPEN_MARGIN_S
        self._open_until_s = time.monotonic() + self._open_limit_s
        with ExitStack() as stack:
            self._directory = stack.enter_context(private_directory())
            self._reports_to = ipc_endpoint(self._directory, "reports")
            self.picture_endpoints = picture_endpoints(config, self._directory)
            transport = Transport()
            stack.callback(transport.close)
            self._reports = transport.event_receiver(self._reports_to)
            stack.callback(self._reports.close)
            if forks is None and (forks := start_fork_server()) is not None:
                stack.enter_context(forks)
            self._forks = forks
            if answers is None and config.answer.server is None:
                answers = AnswerService(config, run.clock, model_loader=run.model_loader, forks=forks)
            self._answers = answers
            if answers is not None:  # before the frame process: loading a model takes longest
                self._restarts = stack.enter_context(answers.hold(run.control))
            options = config.pipeline.model_copy(update={"restart": True})
            self._supervisor = ProcessSupervisor(FRAMES, self._start, options, run.clock)
            self._resources = stack.pop_all()

    @property
    def texture(self) -> None:
        """None: it is in the frame process."""
        return None

    def processes(self) -> dict[str, int]:
        """The processes that are the run's own."""
        children = {FRAMES: self._supervisor.child.pid}
        if self._answers is None or self._answers.concurrent:
            answers = None
        else:
            answers = self._answers.pid
        if answers is not None:
            children[ANSWERS] = answers
        if self._standalone:
            return {"main": os.getpid(), **children}
        return children

    def send(self, command: Command) -> None:
        """Sends the process a command; after one to stop it is not started again."""
        self._ending = self._ending or isinstance(command, Stop)
        self._supervisor.child.send_line(msgspec.json.encode(command))

    def receive(self) -> Sequence[Report]:
        """Returns the next reports, and the restarts of both processes.

        The frame process is started again only when no report waits: the reports of a dead one have its own numbers.
        """
        # Asked before its last report is waited for.
        if self._opened:
            exit_error = None
        else:
            exit_error = self._supervisor.child.exit_error()
        data = self._reports.receive(POLL_MS)
        reports: list[Report] = []
        while self._restarts:
            reports.append(self._restarts.popleft())
        if data is not None:
            report = unpack_report(data)
            if isinstance(report, WorkerNote):
                write_note(report)
                return reports
            if isinstance(report, AnswerTimeout):
                if self._answers is not None:
                    self._answers.report_hung()
                return reports
            if isinstance(report, FrameReady) and self._standalone and self._spare is None:
                self._spare = self._new()
            self._opened = self._opened or isinstance(report, SourceOpened)
            reports.append(report)
        elif exit_error is not None:
            raise exit_error
        elif not self._opened:
            if time.monotonic() > self._open_until_s:
                limit = f"{self._open_limit_s:.0f} s"
                raise SourceError(f"the source could not be opened within {limit}; check that it is there")
        elif self._ending:
            self._supervisor.kill_if_hung()
            if self._supervisor.child.exit_error() is not None:
                reports.append(WorkerFinished())
        elif (restarted := self._supervisor.poll()) is not None:
            reports.append(restarted)
        return reports

    def recover(self, error: Exception, *, source_lost: bool) -> None:
        """Raises an error that the user can fix; another one leads to a restart."""
        if source_lost:
            self._supervisor.reset_crash_count()
        elif is_user_fixable(error):
            raise error
        log.debug("the frame process failed: %s", error)

    def stop(self) -> None:
        """Stops the processes, and releases what they shared."""
        self._supervisor.child.stop()
        if self._spare is not None:  # it holds nothing, and may still be importing
            self._spare.kill()
            self._spare.stop()
        self._resources.close()

    def _start(self) -> ChildProcess:
        """Sets a frame process to work: the spare one, or a new one if that is not there or has died."""
        child = self._spare or self._new()
        self._spare = None
        if child.exit_error() is not None:
            child.stop()
            child = self._new()
        continuity = self._continuity
        config = FrameWorkerConfig(
            reports_to=self._reports_to,
            answers=None if self._answers is None else self._answers.address,
            snapshot=next(iter(self._inherited), None),
            heartbeat=child.heartbeat_writer,
            directory=self._directory,
            model_loader=self._model_loader,
            config=continuity.next_config().encode(),
            watches=continuity.watches.states,
            pictures_to=self.picture_endpoints,
            first_frame=continuity.frames_before,
            nice=self._nice,
        )
        child.send_line(msgspec.json.encode(config))
        for command in continuity.open_commands:
            child.send_line(msgspec.json.encode(command))
        return child

    @property
    def _inherited(self) -> tuple[int, ...]:
        """Descriptor of the memory that is shared with the answer process, if any."""
        if self._answers is None:
            shared = None
        else:
            shared = self._answers.snapshot
        return () if shared is None else (shared.descriptor,)

    def _new(self) -> ChildProcess:
        environment = {"OMP_NUM_THREADS": "1"}
        return ChildProcess(
            "frame", "stream.runtime.frame_worker", self._inherited, environment, forks=self._forks, preload=True
        )


def run_in_child(
    config: Config,
    clock: Clock | None = None,
    *,
    model_loader: str = CONFIGURED,
    control: RunControl | None = None,
    answers: AnswerService | None = None,
    forks: ForkServer | None = None,
    standalone: bool = True,
    nice: int = 0,
) -> Run:
    """Opens a run whose frame stages are in a child process. This process keeps the outputs, and imports no torch.

    Args:
        config: Configuration of the run.
        clock: Clock of the run, by default the monotonic one.
        model_loader: Name of the function that loads the model.
        control: Control of the run, by default a separate one.
        answers: As in `FrameProcess`.
        forks: As in `FrameProcess`.
        standalone: As in `FrameProcess`.
        nice: As in `FrameProcess`.

    Raises:
        StreamError: As `Run`.
        ArrCocError: As `Run`.
    """
    pipeline = config.pipeline.model_copy(update={"restart": True, "single_process": False})
    config = config.model_copy(update={"pipeline": pipeline})

    def process(run: Run) -> FrameProcess:
        return FrameProcess(config, run, answers=answers, forks=forks, standalone=standalone, nice=nice)

    return Run(config, process, clock, control=control, model_loader=model_loader)
