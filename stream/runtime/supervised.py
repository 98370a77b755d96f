"""Supervised run: frame stages and answer server are child processes, and each is started again when it dies.

This process keeps the sinks. A frame process that dies takes no loaded model with it, an answer process no frame. A
spare frame process waits with everything imported, so that a dead one is replaced at once.
"""

from __future__ import annotations

import logging
import os
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
from stream.runtime.answer_worker import ANSWERS, AnswerWorker
from stream.runtime.child import ProcessSupervisor, RestartPolicy, start_fork_server
from stream.runtime.fork_server import ForkServer
from stream.runtime.frame_processes import FrameWorkers
from stream.runtime.run import picture_endpoints
from stream.runtime.shared_answers import SharedAnswers
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
    `shared` answers for other runs too, and is started, polled and closed by its owner. `alone` is false for one of
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
        shared: SharedAnswers | None = None,
        alone: bool = True,
        nice: int = 0,
    ) -> None:
        self._alone = alone
        self._shared = shared
        self._shared_restarts = 0 if shared is None else len(shared.restarts_since(0))
        pipeline = config.pipeline.model_copy(update={"restart": True, "single_process": False})
        super().__init__(config.model_copy(update={"pipeline": pipeline}), clock, model_loader, control)
        self._supervisors: dict[str, ProcessSupervisor] = {}
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
            self._answers = None if shared is not None else self._answer_worker(stack, forks)
            answers = shared or self._answers
            self._workers = FrameWorkers(
                self._continuity,
                answers,
                model_loader,
                endpoint,
                directory,
                self.picture_endpoints,
                forks,
                spare=alone,
                nice=nice,
            )
            stack.callback(self._stop_children)
            if self._answers is not None:  # before the frame process: loading a model takes longest
                self._answers.start()
            policy = RestartPolicy.of(self._config.pipeline, restart=True)
            self._supervisors[FRAMES] = ProcessSupervisor(FRAMES, self._workers.start, policy, self._clock)
            limit_s = self._config.capture.open_timeout_s + OPEN_MARGIN_S
            self._open(limit_s, f"the source could not be opened within {limit_s:.0f} s; check that it is there")
            self._stack = stack.pop_all()

    def processes(self) -> dict[str, int]:
        """The processes of the run by what they do, and their ids: its own, beside other runs."""
        supervisors = self._supervisors.copy()  # any thread asks, and the main one adds to them
        own = {name: supervisor.child.pid for name, supervisor in supervisors.items()}
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

    def _events(self) -> Iterator[Event]:
        if self._answers is not None:
            self._supervisors[ANSWERS] = self._answers.start()
        yield from super()._events()

    def _send(self, command: WorkerCommand) -> None:
        self._supervisors[FRAMES].child.send_line(msgspec.json.encode(command))

    def _receive(self) -> Sequence[Report]:
        data = self._reports.receive(POLL_MS)
        return () if data is None else (unpack_report(data),)

    def _receive_opening(self) -> Sequence[Report]:
        exit_error = self._supervisors[FRAMES].child.exit_error()  # before its last report is waited for
        reports = self._receive()
        if not reports and exit_error is not None:
            raise exit_error
        return reports

    def _restarts(self, sent: WorkerCommand) -> Iterable[Event]:
        """Return the restarts of the answer process; of none once the run is cancelled."""
        if sent.cancel:
            return ()
        if ANSWERS in self._supervisors:
            return self._restarted(ANSWERS)
        if self._shared is None:
            return ()
        restarts = self._shared.restarts_since(self._shared_restarts)
        self._shared_restarts += len(restarts)
        return restarts

    def _restarted_worker(self) -> Iterable[Event]:
        return self._restarted(FRAMES)

    def _restarted(self, process: str) -> list[Restarted]:
        """Polls one supervisor; returns the restart, if any. Raises StageDied in a crash loop.

        The frame process is polled only when no report waits: the reports of a dead one have its own numbers.
        """
        restarted = self._supervisors[process].poll()
        return [] if restarted is None else [restarted]

    def _is_gone(self) -> bool:
        """Return whether the frame process has ended, which stays so once the run ends; kills a silent one."""
        supervisor = self._supervisors[FRAMES]
        supervisor.kill_if_hung()
        return supervisor.child.exit_error() is not None

    def _as_whole(self, event: Event) -> Event | None:
        if isinstance(event, FrameReady):
            self._workers.prestart()
        return super()._as_whole(event)

    def _note(self, report: Report) -> None:
        if isinstance(report, AnswerTimeout) and self._shared is not None:
            self._shared.report_hung()
        elif isinstance(report, AnswerTimeout) and self._answers is not None:
            self._answers.kill_hung()
        else:
            super()._note(report)

    def _fail(self, error: Exception, message: str) -> None:
        """Raises an error that the user can put right; another one leads to a restart."""
        if self._may_come_back(error):
            self._supervisors[FRAMES].reset_crash_count()
        elif is_user_fixable(error):
            raise error
        log.debug("the frame process failed: %s", message)

    def _answer_worker(self, stack: ExitStack, forks: ForkServer | None) -> AnswerWorker | None:
        if self._config.answer.server is not None:
            return None
        answers = AnswerWorker(self._config, self._clock, restart=True, model_loader=self._model_loader, forks=forks)
        stack.callback(answers.close)
        return answers

    def _stop_children(self) -> None:
        for supervisor in self._supervisors.values():
            supervisor.child.stop()
        self._workers.stop_spare()
