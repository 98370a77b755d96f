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
from stream.clock import Clock, MonotonicClock
from stream.config import Config
from stream.control import USER_ERRORS, describe, remote_error
from stream.errors import SourceError, SourceOver, StageDied, StreamError, TransportError
from stream.events import Event, FrameReady, Notice, Restarted, Started, Summary, Turned
from stream.model_world import check_watched
from stream.monitor.statistics import RunStatistics
from stream.overlay import Overlay
from stream.runtime.answer_worker import ANSWERS, LocalAnswers, restart_rules
from stream.runtime.child import Keeper
from stream.runtime.frame_processes import FrameChildren, Succession
from stream.runtime.worker_messages import AnswersHang, Broke, Dropped, Happened, Opened, Report, Told, unpack_report
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
        self._succession = Succession(self._config, self._clock)
        self._keepers: dict[str, Keeper] = {}
        with ExitStack() as stack:
            directory = stack.enter_context(private_directory())
            reports = ipc_endpoint(directory, "reports")
            self._transport = Transport()
            stack.callback(self._transport.close)
            self._source = self._transport.event_source(reports)
            stack.callback(self._source.close)
            self._answers = self._local_answers(stack)
            self._children = FrameChildren(self._succession, self._answers, self._speaker, reports, directory)
            stack.callback(self._stop_children)
            rules = restart_rules(self._config, restart=True)
            self._keepers[FRAMES] = Keeper(FRAMES, self._children.start, rules, self._clock)
            opened = self._opened()
            self._succession.opened(opened)
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
        keepers = self._keepers.copy()  # any thread asks, and the main one adds to them
        return {"main": os.getpid(), **{name: keeper.child.pid for name, keeper in keepers.items()}}

    def drops(self) -> dict[str, int]:
        """What has been dropped so far, by queue and cause; for any thread."""
        return self._succession.drops()

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
                backend=self._succession.backend,
            )
            yield Notice(code="loading", message=f"loading {self._model}")
            if self._answers is not None:
                self._keepers[ANSWERS] = self._answers.start()
            try:
                for event in self._events():
                    self.statistics.add(event)
                    yield event
            except (StreamError, ArrCocError) as error:
                failure = error
        if failure is None:
            yield self.statistics.summary(self._outcome(), None, self.drops(), self._succession.backend)
        else:
            yield self.statistics.summary("error", describe(failure), self.drops(), self._succession.backend)
            raise failure

    def _outcome(self) -> str:
        if self._cancelled:
            return "cancelled"
        if self._found:
            return "found"
        return "interrupted" if self._ending else "finished"

    def _events(self) -> Generator[Event, None, None]:
        """What the frame stages tell until they have ended, and what happens to the children meanwhile."""
        told = Told()
        cancelled_s: float | None = None
        while True:
            told = self._pass_on(told)
            if told.cancel:
                cancelled_s = cancelled_s or time.monotonic()
                if time.monotonic() - cancelled_s > STOP_LIMIT_S:
                    return
            elif ANSWERS in self._keepers:
                yield from self._restarted(self._keepers[ANSWERS])
            data = self._source.receive(POLL_MS)
            report = None if data is None else unpack_report(data)
            if report is None:
                if not told.end:
                    yield from self._restarted(self._keepers[FRAMES])
                elif self._frames_are_gone():
                    return
            elif not isinstance(report, Happened):
                self._note(report)
                if self._over:
                    return
            elif not isinstance(report.event, Summary):
                event = self._succession.take(report.event)
                if event is not None:
                    self._heed(event)
                    yield event
            elif report.event.ended != "error":
                self._succession.dropped(report.event.dropped)
                return

    def _pass_on(self, told: Told) -> Told:
        """Tells the frame process what it has not been told yet."""
        child = self._keepers[FRAMES].child
        while self._questions:
            self._succession.asked = self._questions.popleft()
            child.tell(msgspec.json.encode(Told(ask=self._succession.asked)))
        wanted = Told(end=self._ending, cancel=self._cancelled)
        if wanted != told:
            child.tell(msgspec.json.encode(wanted))
        return wanted

    def _restarted(self, keeper: Keeper) -> list[Restarted]:
        """Starts a child again that has died. Raises StageDied in a crash loop.

        The frame process is looked at when it has nothing more to report: what a dead one has still told is of its own
        numbers.
        """
        restarted = keeper.watch()
        return [] if restarted is None else [restarted]

    def _frames_are_gone(self) -> bool:
        """Whether the frame process has ended, which is not started again once the run ends; a silent one is killed."""
        keeper = self._keepers[FRAMES]
        keeper.mind_silence()
        return keeper.child.death() is not None

    def _heed(self, event: Event) -> None:
        """What an event of the frame stages means for the children."""
        if isinstance(event, FrameReady):
            self._children.keep_spare()
        elif isinstance(event, Turned) and self._succession.holds and not (self._goes_on or self._ending):
            self._found = self._ending = True

    def _note(self, report: Report) -> None:
        """Raises the error that the user can put right; another one ends the child, which is then started again."""
        if isinstance(report, Dropped):
            self._succession.dropped(report.drops)
        elif isinstance(report, Opened):
            self._succession.opened(report)
        elif isinstance(report, AnswersHang) and self._answers is not None:
            self._answers.hung()
        elif isinstance(report, Broke):
            error = _as_raised(report)
            self._over = isinstance(error, SourceOver) and self._succession.frames_before > 0
            if self._over:
                return  # the one before it died in the source's last moments
            if isinstance(error, SourceError) and self._info.live and self._config.capture.reconnect:
                self._keepers[FRAMES].forgive()
            elif isinstance(error, USER_ERRORS):
                raise error
            log.debug("the frame process broke: %s", report.message)

    def _opened(self) -> Opened:
        """Waits until the frame process has opened the source. Raises what it could not open it for."""
        limit_s = self._config.capture.open_timeout_s + OPEN_MARGIN_S
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s:
            death = self._keepers[FRAMES].child.death()  # before its last words are waited for
            data = self._source.receive(POLL_MS)
            report = None if data is None else unpack_report(data)
            if isinstance(report, Opened):
                return report
            if isinstance(report, Broke):
                raise _as_raised(report)
            if report is None and death is not None:
                raise death
        raise SourceError(f"the source could not be opened within {limit_s:.0f} s; check that it is there")

    def _local_answers(self, stack: ExitStack) -> LocalAnswers | None:
        if self._config.answer.server is not None:
            return None
        answers = LocalAnswers(self._config, self._speaker, self._clock, restart=True)
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
        for keeper in self._keepers.values():
            keeper.stop()
        self._children.stop_spare()


def _as_raised(broke: Broke) -> Exception:
    return remote_error(broke.error, broke.message) or StageDied("frame", broke.message)
