"""Base of runs whose frames are read by a worker: its reports become the events of one run, however often it dies."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from stream.clock import Clock
from stream.config import Config
from stream.control import FOUND, RunControl, remote_error
from stream.errors import OpeningCancelled, SourceError, SourceOver, StageDied
from stream.events import Event, VerdictChanged, unpack_event
from stream.runtime.frame_processes import RunContinuity
from stream.runtime.run import BaseRun
from stream.runtime.worker_messages import (
    DropReport,
    EventReport,
    Report,
    SourceOpened,
    WorkerCommand,
    WorkerFailed,
    WorkerFinished,
)

FRAMES = "frames"
"""Name of the worker in events and metrics."""

STOP_LIMIT_S = 5.0
"""Time that the worker may take to stop once it has been cancelled."""


class WorkerRun(BaseRun):
    """Run whose frame stages are in a worker: a process of this machine, or of another one.

    A worker that is started again goes on where the one before ended: numbers and times continue. A subclass sends the
    worker commands, receives its reports, and sees to it that it is started again.
    """

    def __init__(
        self, config: Config, clock: Clock | None, model_loader: str, control: RunControl | None = None
    ) -> None:
        super().__init__(config, clock, model_loader, control)
        self._continuity = RunContinuity(self._config, self._clock)
        self._unread: deque[Report] = deque()

    @property
    def backend(self) -> str:
        """The texture store that runs."""
        return self._continuity.backend

    @property
    def kernel(self) -> str:
        """The kernel that works on texels in host memory."""
        return self._continuity.kernel

    def drops(self) -> dict[str, int]:
        """Number of dropped items so far, by queue and cause; for any thread."""
        return self._continuity.drops()

    @abstractmethod
    def _send(self, command: WorkerCommand) -> None:
        """Send the worker a command."""

    @abstractmethod
    def _receive(self) -> Sequence[Report]:
        """Return the next reports, in their order; waits a moment for the first one, and returns none after that."""

    @abstractmethod
    def _is_gone(self) -> bool:
        """Return whether a worker that was told to end has done so without a last word; it is silent now."""

    @abstractmethod
    def _fail(self, error: Exception, message: str) -> None:
        """Handle the worker's failure, which is told in `message`. Raises what the run ends with."""

    def _restarts(self, sent: WorkerCommand) -> Iterable[Event]:
        """Return what is new about processes that were started again; `sent` are the commands that the worker has."""
        return ()

    def _restarted_worker(self) -> Iterable[Event]:
        """Return that the worker, which is silent, was started again, if it was. Raises StageDied in a crash loop."""
        return ()

    def _open(self, limit_s: float, problem: str) -> None:
        """Wait until the source is open. Raises the error of one that cannot be opened, OpeningCancelled, and after
        `limit_s` SourceError with `problem`."""
        opened = self._wait_for_source(limit_s, problem)
        self._continuity.note_source(opened)
        self._set_source(opened.info)

    def _wait_for_source(self, limit_s: float, problem: str) -> SourceOpened:
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s:
            if self._control.ending:
                raise OpeningCancelled("the run was ended before its source was open")
            self._unread.extend(self._receive_opening())
            while self._unread:
                report = self._unread.popleft()
                if isinstance(report, SourceOpened):
                    return report
                if isinstance(report, WorkerFailed):
                    raise _error_of(report)
        raise SourceError(problem)

    def _receive_opening(self) -> Sequence[Report]:
        """Return the next reports while the source is being opened. Raises what the worker died of."""
        return self._receive()

    def _events(self) -> Iterator[Event]:
        """Yield the events of the frame stages until they have ended, and the restarts of processes."""
        sent = WorkerCommand()
        cancelled_s: float | None = None
        while True:
            sent = self._pass_on(sent)
            if sent.cancel:
                cancelled_s = cancelled_s or time.monotonic()
                if time.monotonic() - cancelled_s > STOP_LIMIT_S:
                    return
            yield from self._restarts(sent)
            if not self._unread:
                self._unread.extend(self._receive())
            if not self._unread:
                if not sent.end:
                    yield from self._restarted_worker()
                elif self._is_gone():
                    return
            while self._unread:
                report = self._unread.popleft()
                if isinstance(report, EventReport):
                    event = self._as_whole(unpack_event(report.event))
                    if event is not None:
                        yield event
                elif isinstance(report, WorkerFinished):
                    self._continuity.note_drops(report.drops)
                    return
                elif isinstance(report, WorkerFailed) and self._is_over(report):
                    return
                else:
                    self._note(report)

    def _pass_on(self, sent: WorkerCommand) -> WorkerCommand:
        """Send the worker the commands that are new since `sent`; return those that it has."""
        if (query := self._control.take_query()) is not None:
            self._continuity.pending_query = query
            self._send(WorkerCommand(query=query))
        wanted = WorkerCommand(end=self._control.ending, cancel=self._control.cancelled)
        if wanted != sent:
            self._send(wanted)
        return wanted

    def _as_whole(self, event: Event) -> Event | None:
        """Return an event as the whole run counts, None for one that was told before; ends the run once its standing
        query is answered with yes."""
        rebased = self._continuity.rebase(event)
        if isinstance(rebased, VerdictChanged) and self._continuity.verdict and not self._config.answer.until.go_on:
            self._control.end(FOUND)
        return rebased

    def _note(self, report: Report) -> None:
        """Handle any other report. Raises what ends the run."""
        if isinstance(report, DropReport):
            self._continuity.note_drops(report.drops)
        elif isinstance(report, SourceOpened):
            self._continuity.note_source(report)
        elif isinstance(report, WorkerFailed):
            self._fail(_error_of(report), report.message)

    def _may_come_back(self, error: Exception) -> bool:
        """Return whether it is a live source that was lost, and is opened again."""
        return isinstance(error, SourceError) and self.source_info.live and self._config.capture.reconnect

    def _is_over(self, report: WorkerFailed) -> bool:
        """Return whether a worker found no more source: the one before died in its last moments."""
        return isinstance(_error_of(report), SourceOver) and self._continuity.frames_before > 0


def _error_of(failed: WorkerFailed) -> Exception:
    """Return the error that a worker has failed with: as it was raised there, or StageDied."""
    return remote_error(failed.error, failed.message) or StageDied("frame", failed.message)
