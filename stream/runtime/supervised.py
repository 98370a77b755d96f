"""A run that outlives its processes: the frame stages and the answer stage are children, and each is started again.

This process keeps the sinks. A frame process that dies takes no loaded model with it, an answer process no frame; a
spare frame process waits with everything imported, so that a dead one is replaced at once.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Generator
from contextlib import ExitStack

import msgspec

from arr_coc.errors import ArrCocError
from stream.answer.model import QWEN, model_name
from stream.answer.model_world import check_watched
from stream.clock import Clock, MonotonicClock
from stream.config import Config
from stream.control import describe, is_user_fixable, remote_error
from stream.errors import SourceError, SourceOver, StageDied, StreamError, TransportError
from stream.events import Event, FrameReady, Notice, Restarted, Started, Summary, VerdictChanged
from stream.media import Overlay
from stream.monitor.statistics import RunStatistics
from stream.runtime.answer_worker import ANSWERS, AnswerWorker, restart_policy
from stream.runtime.child import ProcessSupervisor
from stream.runtime.frame_processes import FrameWorkers, RunContinuity
from stream.runtime.worker_messages import (
    AnswerTimeout,
    DropReport,
    EventReport,
    Report,
    SourceOpened,
    WorkerCommand,
    WorkerFailed,
    unpack_report,
)
from stream.sources import SourceInfo
from stream.transport import Transport, ipc_endpoint, private_directory

POLL_MS = 50
"""How long the main thread waits for a report before it looks after its children."""

OPEN_MARGIN_S = 60.0
"""Beyond `capture.open_timeout_s`: how long a child may take to import its libraries on a busy machine."""

STOP_LIMIT_S = 5.0
"""How long the frame stages may take to stop once they have been cancelled."""

FRAMES = "frames"
"""What the frame process is called in events and metrics."""

log = logging.getLogger(__name__)


class SupervisedRun:
    """A source, a question and a model, run in two children; the same face as `Pipeline`.

    Making one starts the frame process, which opens the source: raises StreamError or ArrCocError where it cannot be.
    """

    def __init__(self, config: Config, clock: Clock | None = None, *, speaker: str = QWEN) -> None:
        self._clock = clock or MonotonicClock()
        self._speaker = speaker
        pipeline = config.pipeline.model_copy(update={"restart": True, "single_process": False})
        self._config = config.model_copy(update={"pipeline": pipeline})
        self._ending = self._cancelled = self._over = False
        self._questions: deque[str] = deque(maxlen=8)
        self._found = False
        self._goes_on = config.answer.until.go_on
        self._continuity = RunContinuity(self._config, self._clock)
        self._supervisors: dict[str, ProcessSupervisor] = {}
        with ExitStack() as stack:
            directory = stack.enter_context(private_directory())
            reports = ipc_endpoint(directory, "reports")
            self._transport = Transport()
            stack.callback(self._transport.close)
            self._source = self._transport.event_source(reports)
            stack.callback(self._source.close)
            self._answers = self._local_answers(stack)
            self._workers = FrameWorkers(self._continuity, self._answers, self._speaker, reports, directory)
            stack.callback(self._stop_children)
            rules = restart_policy(self._config, restart=True)
            self._supervisors[FRAMES] = ProcessSupervisor(FRAMES, self._workers.start, rules, self._clock)
            opened = self._opened()
            self._continuity.opened(opened)
            self._info = opened.info
            self._model = self._model_name()
            self.statistics = RunStatistics(self._clock, self._info.fps)
            self._stack = stack.pop_all()

    @property
    def source_info(self) -> SourceInfo:
        """What the source says about itself."""
        return self._info

    def end(self) -> None:
        """No new frames; what is in flight is finished."""
        self._ending = True

    def cancel(self) -> None:
        """Everything stops; what is in flight is dropped."""
        self._ending = self._cancelled = True

    def ask(self, query: str) -> None:
        """Changes the question, from any thread; an `Asked` event tells what became of it."""
        self._questions.append(query)

    def processes(self) -> dict[str, int]:
        """The processes of the run by what they do, and their ids."""
        supervisors = self._supervisors.copy()  # any thread asks, and the main one adds to them
        return {"main": os.getpid(), **{name: supervisor.child.pid for name, supervisor in supervisors.items()}}

    def drops(self) -> dict[str, int]:
        """What has been dropped so far, by queue and cause; for any thread."""
        return self._continuity.drops()

    def take_overlay(self, slot: int) -> Overlay:
        """Pictures stay in the frame process. Raises TransportError."""
        raise TransportError(f"the picture {slot} lies in another process")

    def run(self) -> Generator[Event, None, None]:
        """Every event of the run, in order, the summary last; called once, and read by one thread.

        Closing the iterator stops everything. After the summary of a run that failed, raises what it failed of.
        """
        failure: Exception | None = None
        with self._stack:
            yield Started(
                source=self._info.name,
                model=self._model,
                query=self._config.answer.asked,
                backend=self._continuity.backend,
            )
            yield Notice(code="loading", message=f"loading {self._model}")
            if self._answers is not None:
                self._supervisors[ANSWERS] = self._answers.start()
            try:
                for event in self._events():
                    self.statistics.add(event)
                    yield event
            except (StreamError, ArrCocError) as error:
                failure = error
        if failure is None:
            yield self.statistics.summary(self._outcome(), None, self.drops(), self._continuity.backend)
        else:
            yield self.statistics.summary("error", describe(failure), self.drops(), self._continuity.backend)
            raise failure

    def _outcome(self) -> str:
        if self._cancelled:
            return "cancelled"
        if self._found:
            return "found"
        return "interrupted" if self._ending else "finished"

    def _events(self) -> Generator[Event, None, None]:
        """What the frame stages tell until they have ended, and what happens to the children meanwhile."""
        told = WorkerCommand()
        cancelled_s: float | None = None
        while True:
            told = self._pass_on(told)
            if told.cancel:
                cancelled_s = cancelled_s or time.monotonic()
                if time.monotonic() - cancelled_s > STOP_LIMIT_S:
                    return
            elif ANSWERS in self._supervisors:
                yield from self._restarted(self._supervisors[ANSWERS])
            data = self._source.receive(POLL_MS)
            report = None if data is None else unpack_report(data)
            if report is None:
                if not told.end:
                    yield from self._restarted(self._supervisors[FRAMES])
                elif self._frames_are_gone():
                    return
            elif not isinstance(report, EventReport):
                self._note(report)
                if self._over:
                    return
            elif not isinstance(report.event, Summary):
                event = self._continuity.take(report.event)
                if event is not None:
                    self._heed(event)
                    yield event
            elif report.event.ended != "error":
                self._continuity.dropped(report.event.dropped)
                return

    def _pass_on(self, told: WorkerCommand) -> WorkerCommand:
        """Tells the frame process what it has not been told yet."""
        child = self._supervisors[FRAMES].child
        while self._questions:
            self._continuity.asked = self._questions.popleft()
            child.send_line(msgspec.json.encode(WorkerCommand(ask=self._continuity.asked)))
        wanted = WorkerCommand(end=self._ending, cancel=self._cancelled)
        if wanted != told:
            child.send_line(msgspec.json.encode(wanted))
        return wanted

    def _restarted(self, supervisor: ProcessSupervisor) -> list[Restarted]:
        """Starts a child again that has died. Raises StageDied in a crash loop.

        The frame process is looked at when it has nothing more to report: what a dead one has still told is of its own
        numbers.
        """
        restarted = supervisor.poll()
        return [] if restarted is None else [restarted]

    def _frames_are_gone(self) -> bool:
        """Whether the frame process has ended, which is not started again once the run ends; a silent one is killed."""
        supervisor = self._supervisors[FRAMES]
        supervisor.kill_if_hung()
        return supervisor.child.exit_error() is not None

    def _heed(self, event: Event) -> None:
        """What an event of the frame stages means for the children."""
        if isinstance(event, FrameReady):
            self._workers.prestart()
        elif isinstance(event, VerdictChanged) and self._continuity.holds and not (self._goes_on or self._ending):
            self._found = self._ending = True

    def _note(self, report: Report) -> None:
        """Raises the error that the user can put right; another one ends the child, which is then started again."""
        if isinstance(report, DropReport):
            self._continuity.dropped(report.drops)
        elif isinstance(report, SourceOpened):
            self._continuity.opened(report)
        elif isinstance(report, AnswerTimeout) and self._answers is not None:
            self._answers.hung()
        elif isinstance(report, WorkerFailed):
            error = _as_raised(report)
            self._over = isinstance(error, SourceOver) and self._continuity.frames_before > 0
            if self._over:
                return  # the one before it died in the source's last moments
            if isinstance(error, SourceError) and self._info.live and self._config.capture.reconnect:
                self._supervisors[FRAMES].reset_crash_count()
            elif is_user_fixable(error):
                raise error
            log.debug("the frame process broke: %s", report.message)

    def _opened(self) -> SourceOpened:
        """Waits until the frame process has opened the source. Raises what it could not open it for."""
        limit_s = self._config.capture.open_timeout_s + OPEN_MARGIN_S
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s:
            death = self._supervisors[FRAMES].child.exit_error()  # before its last words are waited for
            data = self._source.receive(POLL_MS)
            report = None if data is None else unpack_report(data)
            if isinstance(report, SourceOpened):
                return report
            if isinstance(report, WorkerFailed):
                raise _as_raised(report)
            if report is None and death is not None:
                raise death
        raise SourceError(f"the source could not be opened within {limit_s:.0f} s; check that it is there")

    def _local_answers(self, stack: ExitStack) -> AnswerWorker | None:
        if self._config.answer.server is not None:
            return None
        answers = AnswerWorker(self._config, self._speaker, self._clock, restart=True)
        stack.callback(answers.close)
        return answers

    def _model_name(self) -> str:
        if self._config.answer.server is not None:
            return self._config.answer.server
        if self._speaker != QWEN:
            return self._speaker
        check_watched(self._config)
        return model_name(self._config)

    def close(self) -> None:
        """Stops everything; for a run that may never have been begun. May be called twice."""
        self._stack.close()

    def _stop_children(self) -> None:
        for supervisor in self._supervisors.values():
            supervisor.stop()
        self._workers.stop_spare()


def _as_raised(broke: WorkerFailed) -> Exception:
    return remote_error(broke.error, broke.message) or StageDied("frame", broke.message)
