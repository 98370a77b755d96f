"""Supervised run: frame stages and answer server are child processes, and each is started again when it dies.

This process keeps the sinks. A frame process that dies takes no loaded model with it, an answer process no frame. A
spare frame process waits with everything imported, so that a dead one is replaced at once.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from stream.answer.model import CONFIGURED
from stream.clock import Clock
from stream.config import Config
from stream.control import RunControl, is_user_fixable
from stream.errors import TransportError
from stream.events import Event, FrameReady, Restarted
from stream.media import AllocationOverlay
from stream.runtime.answer_service import ANSWERS, AnswerService
from stream.runtime.child import ProcessSupervisor, RestartPolicy, start_fork_server
from stream.runtime.fork_server import ForkServer
from stream.runtime.frame_processes import FrameWorkers
from stream.runtime.run import picture_endpoints
from stream.runtime.worker_messages import AnswerTimeout, Report, WorkerCommand, unpack_report
from stream.runtime.worker_run import FRAMES, WorkerRun
from stream.transport import Transport, ipc_endpoint, private_directory

POLL_MS = 50
"""Time that the main thread waits for a report before it polls the children."""

OPEN_MARGIN_S = 60.0
"""Time beyond `capture.open_timeout_s` that a child may take to import its libraries on a busy machine."""

log = logging.getLogger(__name__)


class SupervisedRun(WorkerRun):
    """Run in two child processes.

    Making one starts the frame process, which opens the source; it raises OpeningCancelled where `control` ends the run
    before that. `forks` starts the processes, and stays the caller's; without it the run has a fork server of its own.
    `shared` answers for other runs too. `alone` is false for one of
    several runs of this process: it keeps no spare process, and names only the processes that are its own. It may be in
    any thread, which makes it and reads its events. `nice` is the niceness of its frame process.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock | None = None,
        *,
        model_loader: str = CONFIGURED,
        control: RunControl | None = None,
        forks: ForkServer | None = None,
        shared: AnswerService | None = None,
        alone: bool = True,
        nice: int = 0,
    ) -> None:
        self._alone = alone
        pipeline = config.pipeline.model_copy(update={"restart": True, "single_process": False})
        super().__init__(config.model_copy(update={"pipeline": pipeline}), clock, model_loader, control)
        self._answer_restarts: deque[Restarted] = deque()
        with ExitStack() as stack:
            directory = stack.enter_context(private_directory())
            endpoint = ipc_endpoint(directory, "reports")
            self.picture_endpoints = picture_endpoints(self._config.output, directory)
            transport = Transport()
            stack.callback(transport.close)
            self._reports = transport.event_receiver(endpoint)
            stack.callback(self._reports.close)
            if forks is None and (forks := start_fork_server()) is not None:
                stack.enter_context(forks)
            self._answers = shared
            if shared is None and self._config.answer.server is None:
                self._answers = AnswerService(self._config, self._clock, model_loader=model_loader, forks=forks)
            if self._answers is not None:  # before the frame process: loading a model takes longest
                self._answer_restarts = stack.enter_context(self._answers.hold(self._control))
            self._workers = FrameWorkers(
                self._continuity,
                self._answers,
                model_loader,
                endpoint,
                directory,
                self.picture_endpoints,
                forks,
                spare=alone,
                nice=nice,
            )
            stack.callback(self._stop_children)
            policy = RestartPolicy.of(self._config.pipeline, restart=True)
            self._supervisor = ProcessSupervisor(FRAMES, self._workers.start, policy, self._clock)
            limit_s = self._config.capture.open_timeout_s + OPEN_MARGIN_S
            self._open(limit_s, f"the source could not be opened within {limit_s:.0f} s; check that it is there")
            self._stack = stack.pop_all()

    def processes(self) -> dict[str, int]:
        """The processes of the run by what they do, and their ids: its own, beside other runs."""
        own = {FRAMES: self._supervisor.child.pid}
        answers = None if self._answers is None or self._answers.concurrent else self._answers.pid
        if answers is not None:
            own[ANSWERS] = answers
        return {"main": os.getpid(), **own} if self._alone else own

    def take_overlay(self, slot: int) -> AllocationOverlay:
        """Raises TransportError: pictures stay in the frame process."""
        raise TransportError(f"the picture {slot} lies in another process")

    def close(self) -> None:
        """Stops everything; for a run that may never have begun. May be called twice."""
        self._stack.close()

    @contextmanager
    def _running(self) -> Iterator[Iterator[Event]]:
        with self._stack:
            yield self._events()

    def _send(self, command: WorkerCommand) -> None:
        self._supervisor.child.send_line(msgspec.json.encode(command))

    def _receive(self) -> Sequence[Report]:
        data = self._reports.receive(POLL_MS)
        return () if data is None else (unpack_report(data),)

    def _receive_opening(self) -> Sequence[Report]:
        exit_error = self._supervisor.child.exit_error()  # before its last report is waited for
        reports = self._receive()
        if not reports and exit_error is not None:
            raise exit_error
        return reports

    def _restarts(self, sent: WorkerCommand) -> Iterable[Event]:
        """Yield the restarts of the answer process."""
        while self._answer_restarts:
            yield self._answer_restarts.popleft()

    def _restarted_worker(self) -> Iterable[Event]:
        """Return the restart of the frame process, if any. Raises StageDied in a crash loop.

        The frame process is polled only when no report waits: the reports of a dead one have its own numbers.
        """
        restarted = self._supervisor.poll()
        return [] if restarted is None else [restarted]

    def _is_gone(self) -> bool:
        """Return whether the frame process has ended, which stays so once the run ends; kills a silent one."""
        supervisor = self._supervisor
        supervisor.kill_if_hung()
        return supervisor.child.exit_error() is not None

    def _as_whole(self, event: Event) -> Event | None:
        if isinstance(event, FrameReady):
            self._workers.prestart()
        return super()._as_whole(event)

    def _note(self, report: Report) -> None:
        if isinstance(report, AnswerTimeout) and self._answers is not None:
            self._answers.report_hung()
        else:
            super()._note(report)

    def _fail(self, error: Exception, message: str) -> None:
        """Raises an error that the user can put right; another one leads to a restart."""
        if self._may_come_back(error):
            self._supervisor.reset_crash_count()
        elif is_user_fixable(error):
            raise error
        log.debug("the frame process failed: %s", message)

    def _stop_children(self) -> None:
        self._supervisor.child.stop()
        self._workers.stop_spare()
