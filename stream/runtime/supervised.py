"""Supervised run: frame stages and answer server are child processes, and each is started again when it dies.

This process keeps the sinks. A frame process that dies takes no loaded model with it, an answer process no frame. A
spare frame process waits with everything imported, so that a dead one is replaced at once.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from stream.answer.model import CONFIGURED
from stream.clock import Clock
from stream.config import Config
from stream.control import FOUND, RunControl, is_user_fixable, remote_error
from stream.errors import OpeningCancelled, SourceError, SourceOver, StageDied, TransportError
from stream.events import Event, FrameReady, Restarted, VerdictChanged, unpack_event
from stream.media import AllocationOverlay
from stream.runtime.answer_worker import ANSWERS, AnswerWorker
from stream.runtime.child import ProcessSupervisor, RestartPolicy, start_fork_server
from stream.runtime.fork_server import ForkServer
from stream.runtime.frame_processes import FrameWorkers, RunContinuity
from stream.runtime.run import BaseRun, picture_endpoints
from stream.runtime.shared_answers import SharedAnswers
from stream.runtime.worker_messages import (
    AnswerTimeout,
    DropReport,
    EventReport,
    Report,
    SourceOpened,
    WorkerCommand,
    WorkerFailed,
    WorkerFinished,
    unpack_report,
)
from stream.transport import Transport, ipc_endpoint, private_directory

POLL_MS = 50
"""Time that the main thread waits for a report before it polls the children."""

OPEN_MARGIN_S = 60.0
"""Time beyond `capture.open_timeout_s` that a child may take to import its libraries on a busy machine."""

STOP_LIMIT_S = 5.0
"""Time that the frame stages may take to stop once they have been cancelled."""

FRAMES = "frames"
"""Name of the frame process in events and metrics."""

log = logging.getLogger(__name__)


class SupervisedRun(BaseRun):
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
        self._continuity = RunContinuity(self._config, self._clock)
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
            opened = self._wait_for_source()
            self._continuity.note_source(opened)
            self._set_source(opened.info)
            self._stack = stack.pop_all()

    @property
    def backend(self) -> str:
        """The texture store that runs."""
        return self._continuity.backend

    @property
    def kernel(self) -> str:
        """The kernel that works on texels in host memory."""
        return self._continuity.kernel

    def processes(self) -> dict[str, int]:
        """The processes of the run by what they do, and their ids: its own, beside other runs."""
        supervisors = self._supervisors.copy()  # any thread asks, and the main one adds to them
        own = {name: supervisor.child.pid for name, supervisor in supervisors.items()}
        return {"main": os.getpid(), **own} if self._alone else own

    def drops(self) -> dict[str, int]:
        """Number of dropped items so far, by queue and cause; for any thread."""
        return self._continuity.drops()

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
        """Yields the events of the frame stages until they have ended, and the restarts of the children."""
        if self._answers is not None:
            self._supervisors[ANSWERS] = self._answers.start()
        sent = WorkerCommand()
        cancelled_s: float | None = None
        while True:
            sent = self._pass_on(sent)
            if sent.cancel:
                cancelled_s = cancelled_s or time.monotonic()
                if time.monotonic() - cancelled_s > STOP_LIMIT_S:
                    return
            elif ANSWERS in self._supervisors:
                yield from self._restarted(ANSWERS)
            elif self._shared is not None:
                restarts = self._shared.restarts_since(self._shared_restarts)
                self._shared_restarts += len(restarts)
                yield from restarts
            report = self._next_report()
            if report is None:
                if not sent.end:
                    yield from self._restarted(FRAMES)
                elif self._frames_are_gone():
                    return
            elif isinstance(report, EventReport):
                event = self._continuity.rebase(unpack_event(report.event))
                if event is not None:
                    self._react(event)
                    yield event
            elif isinstance(report, WorkerFinished):
                self._continuity.note_drops(report.drops)
                return
            elif self._is_over(report):
                return
            else:
                self._note(report)

    def _next_report(self) -> Report | None:
        data = self._reports.receive(POLL_MS)
        return None if data is None else unpack_report(data)

    def _pass_on(self, sent: WorkerCommand) -> WorkerCommand:
        """Sends the frame process the commands that are new since `sent`; returns the present ones."""
        child = self._supervisors[FRAMES].child
        if (query := self._control.take_query()) is not None:
            self._continuity.pending_query = query
            child.send_line(msgspec.json.encode(WorkerCommand(query=query)))
        wanted = WorkerCommand(end=self._control.ending, cancel=self._control.cancelled)
        if wanted != sent:
            child.send_line(msgspec.json.encode(wanted))
        return wanted

    def _restarted(self, process: str) -> list[Restarted]:
        """Polls one supervisor; returns the restart, if any. Raises StageDied in a crash loop.

        The frame process is polled only when no report waits: the reports of a dead one have its own numbers.
        """
        restarted = self._supervisors[process].poll()
        return [] if restarted is None else [restarted]

    def _frames_are_gone(self) -> bool:
        """Returns whether the frame process has ended, which stays so once the run ends; kills a silent one."""
        supervisor = self._supervisors[FRAMES]
        supervisor.kill_if_hung()
        return supervisor.child.exit_error() is not None

    def _react(self, event: Event) -> None:
        """Prepares the spare process once frames come; ends the run once its standing query is answered with yes."""
        if isinstance(event, FrameReady):
            self._workers.prestart()
        elif isinstance(event, VerdictChanged) and self._continuity.verdict and not self._config.answer.until.go_on:
            self._control.end(FOUND)

    def _is_over(self, report: Report) -> bool:
        """Returns whether a frame process found no more source: the one before died in its last moments."""
        error = _error_of(report) if isinstance(report, WorkerFailed) else None
        return isinstance(error, SourceOver) and self._continuity.frames_before > 0

    def _note(self, report: Report) -> None:
        """Handles any other report. Raises an error that the user can put right; another one leads to a restart."""
        if isinstance(report, DropReport):
            self._continuity.note_drops(report.drops)
        elif isinstance(report, SourceOpened):
            self._continuity.note_source(report)
        elif isinstance(report, AnswerTimeout) and self._shared is not None:
            self._shared.report_hung()
        elif isinstance(report, AnswerTimeout) and self._answers is not None:
            self._answers.kill_hung()
        elif isinstance(report, WorkerFailed):
            error = _error_of(report)
            if isinstance(error, SourceError) and self.source_info.live and self._config.capture.reconnect:
                self._supervisors[FRAMES].reset_crash_count()
            elif is_user_fixable(error):
                raise error
            log.debug("the frame process failed: %s", report.message)

    def _wait_for_source(self) -> SourceOpened:
        """Waits until the frame process has opened the source. Raises the error of one that could not, and
        OpeningCancelled."""
        limit_s = self._config.capture.open_timeout_s + OPEN_MARGIN_S
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s:
            if self._control.ending:
                raise OpeningCancelled("the run was ended before its source was open")
            exit_error = self._supervisors[FRAMES].child.exit_error()  # before its last report is waited for
            report = self._next_report()
            if isinstance(report, SourceOpened):
                return report
            if isinstance(report, WorkerFailed):
                raise _error_of(report)
            if report is None and exit_error is not None:
                raise exit_error
        raise SourceError(f"the source could not be opened within {limit_s:.0f} s; check that it is there")

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


def _error_of(failed: WorkerFailed) -> Exception:
    return remote_error(failed.error, failed.message) or StageDied("frame", failed.message)
