"""Run of a source: the events of its frame worker as one stream, with statistics, a summary, and its error."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import asdict, replace

from arr_coc.errors import ArrCocError, StoreError
from arr_coc.types import NS_PER_S
from stream.answer.loading import model_name
from stream.answer.model import CONFIGURED, check_watches
from stream.answer.triggers import NO_YES_OR_NO, WatchState, WatchStates
from stream.clock import Clock, MonotonicClock
from stream.config import CaptureConfig, Config, WatchConfig
from stream.control import (
    FOUND,
    INTERRUPTED,
    AddWatch,
    Ask,
    AskAside,
    Command,
    RemoveWatch,
    RunControl,
    Stop,
    describe,
    remote_error,
)
from stream.errors import OpeningCancelled, SourceError, SourceOver, StageDied, StreamError
from stream.events import (
    STORE_LOST,
    Cut,
    Event,
    Explanation,
    FrameReady,
    Glance,
    Match,
    Notice,
    Outage,
    PictureChanged,
    QueryChanged,
    Started,
    VerdictChanged,
    WatchesChanged,
    YesNoResult,
)
from stream.media import AllocationOverlay, SourceInfo
from stream.monitor.statistics import RunStatistics
from stream.protocol.buffers import SlotTable
from stream.protocol.pictures import PictureEndpoints
from stream.runtime.worker_messages import (
    DropReport,
    Report,
    SourceOpened,
    WorkerFailed,
    WorkerFinished,
)
from stream.sinks.types import is_needed
from stream.transport import SocketDirectory, ipc_endpoint

if TYPE_CHECKING:
    from arr_coc.video.texture_updater import TextureUpdater

FRAMES = "frames"
"""Name of the frame worker in events and metrics."""

OVERLAYS = 2
"""Pictures that may wait for the sink that draws them."""

STOP_LIMIT_S = 5.0
"""Time that the worker may take to stop once it has been cancelled."""

REPORTED_ONCE = ("loading", "model-files", "model-world", "glances-off", NO_YES_OR_NO)
"""Codes of notices that a frame worker which was started again need not repeat."""

LEAST_PART_S = 1e-3
"""Part of a file that is left if its end has passed by now: the frame worker finds nothing in it, and ends."""


def picture_endpoints(config: Config, directory: SocketDirectory) -> PictureEndpoints:
    """Return the addresses in a run's directory at which its viewers of live pictures are served."""
    web = is_needed(config, "viewer pictures")
    return PictureEndpoints(
        page=ipc_endpoint(directory, "picture") if web else None,
        microscope=ipc_endpoint(directory, "inspect") if web else None,
        heatmap=ipc_endpoint(directory, "heatmap") if is_needed(config, "overlays") else None,
    )


class FrameWorker(Protocol):
    """Frame stages of a run: in threads of this process, in a child process, or in an actor on another machine.

    For the thread that reads the run; `processes` for any.
    """

    @property
    def picture_endpoints(self) -> PictureEndpoints:
        """Addresses at which viewers of live pictures are served."""
        ...

    @property
    def texture(self) -> TextureUpdater | None:
        """The texture of the stages; None if it is in another process."""
        ...

    def send(self, command: Command) -> None:
        """Passes a command on."""
        ...

    def receive(self) -> Sequence[Report]:
        """Returns the next reports; waits a moment for the first one. `SourceOpened` comes before all events.

        Raises the error that ends the worker: the source cannot be opened, or it died too often.
        """
        ...

    def recover(self, error: Exception, *, source_lost: bool) -> None:
        """Recovers from the failure that it reported, or raises it. `source_lost`: the source may come back soon."""
        ...

    def processes(self) -> dict[str, int]:
        """Returns the ids of the run's processes on this machine, by what they do."""
        ...

    def stop(self) -> None:
        """Stops everything, and tidies up."""
        ...


class Run:
    """Run of a source, a query and a model, once; a `RunHandle`.

    Making one opens the source. `run` is a generator for one thread; the other methods may be called from any thread,
    `end` and `cancel` from signal handlers too.

    Args:
        make_worker: Returns the frame worker of this run.
        control: Ends the run from outside, also before its source is open.
        model_loader: Name of the function that loads the model, as "module:function".
        model: Name of a model that is loaded on another machine.

    Raises:
        StreamError, ArrCocError: The source, the store or the model cannot work.
        OpeningCancelled: `control` ended the run before its source was open.
    """

    def __init__(
        self,
        config: Config,
        make_worker: Callable[[Run], FrameWorker],
        clock: Clock | None = None,
        *,
        control: RunControl | None = None,
        model_loader: str = CONFIGURED,
        model: str | None = None,
    ) -> None:
        self.config = config
        self.clock = clock or MonotonicClock()
        self.control = control or RunControl()
        self.model_loader = model_loader
        self.continuity = RunContinuity(config, self.clock)
        self.overlays: SlotTable[AllocationOverlay] = SlotTable(OVERLAYS)
        self._pending_reports: deque[Report] = deque()
        self._stop: Stop | None = None
        self._ending = {watch.name for watch in config.watch if watch.ends_run}
        with ExitStack() as stack:
            self._worker = make_worker(self)
            stack.callback(self._worker.stop)
            self.source_info = self._wait_for_source()
            self.statistics = RunStatistics(self.clock, self.source_info.fps)
            self._model = model or self._model_name()
            self._stack = stack.pop_all()

    @property
    def backend(self) -> str:
        """The texture store that runs."""
        return self.continuity.backend

    @property
    def kernel(self) -> str:
        """The kernel that works on texels in host memory, as `Started` has it."""
        return self.continuity.kernel

    @property
    def picture_endpoints(self) -> PictureEndpoints:
        """Addresses at which viewers of live pictures are served."""
        return self._worker.picture_endpoints

    @property
    def texture(self) -> TextureUpdater:
        """The live texture, to be read under a `lease`, or drawn from with OpenGL inside `drawing`, by any thread.

        Raises StoreError if the frame stages run in another process.
        """
        texture = self._worker.texture
        if texture is None:
            raise StoreError(
                "the texture of this run is in its frame process; open the run with run_in_threads, or with "
                "pipeline.single_process = true, to draw from it"
            )
        return texture

    def end(self, outcome: str = INTERRUPTED) -> None:
        """Accepts no new frames and finishes those in flight. `outcome` stands in the summary."""
        self.control.end(outcome)

    def cancel(self) -> None:
        """Stops everything and drops the frames in flight."""
        self.control.cancel()

    def send(self, command: Command) -> None:
        """Passes a command on to the run; an event reports what became of it."""
        self.control.send(command)

    def processes(self) -> dict[str, int]:
        """The processes of the run by what they do ("main", "frames", "answers"), and their ids."""
        return self._worker.processes()

    def drops(self) -> dict[str, int]:
        """Number of dropped items so far, by queue and cause."""
        return self.continuity.drops()

    def take_overlay(self, slot: int) -> AllocationOverlay:
        """Returns the picture that an event names; it can be taken until the next event is asked for.

        Raises TransportError if it has been taken before or is gone.
        """
        return self.overlays.take(slot)

    def close(self) -> None:
        """Stops everything; for a run that may never have begun. May be called twice."""
        self._stack.close()

    def run(self) -> Generator[Event, None, None]:
        """Yields every event of the run, in order, the summary last; called once, and read by one thread.

        Closing the iterator stops everything. After the summary of a failed run, raises its error: StageDied, which
        names the stage, or the error that the user can fix.
        """
        with self._stack:
            yield Started(
                source=self.source_info.name,
                model=self._model,
                query=self.config.first_question,
                backend=self.backend,
                kernel=self.kernel,
            )
            if self.config.uses_server:
                verb = "connecting to"
            else:
                verb = "loading"
            yield Notice(code="loading", message=f"{verb} {self._model}")
            try:
                for event in self._events():
                    self.statistics.add(event)
                    yield event
                    if isinstance(event, (FrameReady, Glance)) and event.slot is not None:
                        self.overlays.discard(event.slot)
            except (StreamError, ArrCocError) as error:
                self.control.fail(error)
            failure = self.control.failure
            summary = self.statistics.summary(
                self.control.outcome, None if failure is None else describe(failure), self.drops(), self.backend
            )
        yield summary  # after everything has been tidied up: the reader may end this process
        if self.control.failure is not None:
            raise self.control.failure

    def _model_name(self) -> str:
        """Returns the name of the model. Raises ArrCocError or ConfigError for an unusable one."""
        if self.config.answer.server is not None:
            return self.config.answer.server
        if self.model_loader != CONFIGURED:
            return self.model_loader
        check_watches(self.config)
        return model_name(self.config)

    def _wait_for_source(self) -> SourceInfo:
        early: list[Report] = []
        while not self.control.ending:
            self._pending_reports.extend(self._worker.receive())
            while self._pending_reports:
                report = self._pending_reports.popleft()
                if isinstance(report, SourceOpened):
                    self.continuity.note_source(report)
                    self._pending_reports.extendleft(reversed(early))
                    return report.info
                if isinstance(report, WorkerFailed):
                    raise _error_of(report)
                early.append(report)
        raise OpeningCancelled("the run was ended before its source was open")

    def _events(self) -> Iterator[Event]:
        """Yields the events of the worker until it has ended."""
        cancelled_s: float | None = None
        while True:
            self._pass_on()
            if self._stop is not None and self._stop.cancel:
                cancelled_s = cancelled_s or time.monotonic()
                if time.monotonic() - cancelled_s > STOP_LIMIT_S:
                    return
            self._pending_reports.extend(self._worker.receive() if not self._pending_reports else ())
            while self._pending_reports:
                report = self._pending_reports.popleft()
                if isinstance(report, Event):
                    event = self.continuity.rebase(report)
                    if event is None:
                        continue
                    if isinstance(event, Match) and event.watch in self._ending:
                        self.control.end(FOUND)
                    elif isinstance(event, WatchesChanged):
                        self._ending &= {watch.name for watch in event.watches}
                    yield event
                elif isinstance(report, DropReport):
                    self.continuity.note_drops(report.drops)
                elif isinstance(report, SourceOpened):
                    self.continuity.note_source(report)
                elif isinstance(report, WorkerFinished):
                    return
                elif isinstance(report, WorkerFailed):
                    error = _error_of(report)
                    if isinstance(error, SourceOver) and self.continuity.frames_before:
                        return  # the worker before died in its last moments
                    source_lost = (
                        isinstance(error, SourceError) and self.source_info.live and self.config.capture.reconnect
                    )
                    self._worker.recover(error, source_lost=source_lost)

    def _pass_on(self) -> None:
        """Sends the worker the commands to the run."""
        control = self.control
        for command in control.take_commands():
            self.continuity.note_command(command)
            self._worker.send(command)
        if control.ending and (stop := Stop(control.outcome, cancel=control.cancelled)) != self._stop:
            self._stop = stop
            self._worker.send(stop)


def _error_of(failed: WorkerFailed) -> Exception:
    """Returns the error that a worker has failed with: as it was raised there, or StageDied."""
    return remote_error(failed.error, failed.message) or StageDied("frame", failed.message)


class WatchProgress:
    """States of the watches of a run, from its events."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_name: dict[str, WatchState] = {}
        self._matches = 0

    @property
    def states(self) -> WatchStates:
        """The present states, for another frame worker."""
        return WatchStates(dict(self._by_name), self._matches)

    def note(self, event: Event) -> None:
        """Note an event, which may be another than one of a watch."""
        if isinstance(event, YesNoResult) and event.holds is not None:
            state = self._by_name.get(event.watch, WatchState())
            if event.holds == "no":
                state = dataclasses.replace(state, verdict=False, yes_since_ns=None, matched=False)
            elif not state.verdict or state.yes_since_ns is None:
                state = dataclasses.replace(state, verdict=True, yes_since_ns=self._clock.now_ns())
            self._by_name[event.watch] = state
        elif isinstance(event, (Cut, PictureChanged, Outage)):  # a hold begins anew with each shot
            self._by_name = {
                name: dataclasses.replace(state, yes_since_ns=None) for name, state in self._by_name.items()
            }
        elif isinstance(event, Match):
            state = self._by_name.get(event.watch, WatchState())
            self._matches = event.match
            self._by_name[event.watch] = dataclasses.replace(state, matched=True, last_match_ns=self._clock.now_ns())
        elif isinstance(event, WatchesChanged):
            names = {watch.name for watch in event.watches}
            self._by_name = {name: state for name, state in self._by_name.items() if name in names}


class RunWatches:
    """The watches of a run whose changes outlive a frame worker."""

    def __init__(self, config: Config) -> None:
        self._captions = not config.watches_only
        self._watches = {watch.name: watch for watch in config.watch}
        self._changed = False
        zones = {watch.zone for watch in config.watch} | ({config.answer.zone} if self._captions else set())
        self._zone = None if None in zones else min(map(str, zones))

    def note(self, event: WatchesChanged, command: Command | None) -> None:
        """Note that a change, by this command if that is known, was done or refused."""
        if event.error is None and isinstance(command, AddWatch):
            # of a run that shows only zones: those of its first questions go on
            self._watches[command.name] = WatchConfig(**asdict(command), zone=self._zone)
        names = {watch.name for watch in event.watches}
        self._watches = {name: watch for name, watch in self._watches.items() if name in names}
        self._changed = self._changed or event.error is None

    def of(self, config: Config) -> Config:
        """Return the configuration with the present watches."""
        if not self._changed:
            return config
        answer = config.answer.model_copy(update={"captions": self._captions})
        return config.model_copy(update={"watch": tuple(self._watches.values()), "answer": answer})


class RunContinuity:
    """State that outlives a frame worker: it makes those of one run, one after another, look like one.

    `config` is the whole run's. `backend`, `kernel`: as the event `started` has them; `open_commands`: those to another
    frame worker, because they are neither done nor refused yet, or hold for the whole run; `watches`: the state of its
    watches.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._query = config.answer.query
        self._rebaser = EventRebaser()
        self._reported = {"loading"}
        self._drops: Counter[str] = Counter()
        self._drops_before: Counter[str] = Counter()
        self._verdicts_reported: dict[str, str] = {}
        self.backend = self.kernel = ""
        self.open_commands: list[Command] = []
        self.watches = WatchProgress(clock)
        self._watch_set = RunWatches(config)

    @property
    def frames_before(self) -> int:
        """Number of frames before the present frame worker."""
        return self._rebaser.frames_before

    def note_command(self, command: Command) -> None:
        """Notes a command to the present frame worker; a side question ends with it."""
        if command.newest_counts:
            self.open_commands = [other for other in self.open_commands if type(other) is not type(command)]
        if not isinstance(command, AskAside):
            self.open_commands.append(command)

    def _settle(self, is_done: Callable[[Command], bool]) -> Command | None:
        """Takes the first open command that is done or refused; returns None if there is none."""
        command = next(filter(is_done, self.open_commands), None)
        if command is not None:
            self.open_commands.remove(command)
        return command

    def note_source(self, report: SourceOpened) -> None:
        """Notes that the present frame worker has opened its source."""
        self.backend = report.backend
        self.kernel = report.kernel
        self._rebaser.live = report.info.live

    def note_drops(self, drops: Mapping[str, int]) -> None:
        """Notes the drops of the present frame worker so far."""
        self._drops = Counter(drops)

    def drops(self) -> dict[str, int]:
        """Returns the drops of all of them; for any thread."""
        return dict(self._drops_before + self._drops)

    def rebase(self, event: Event) -> Event | None:
        """Returns an event with the numbers and times of the whole run; None if it was reported before."""
        if isinstance(event, Notice):
            if event.code in REPORTED_ONCE:
                if event.code == NO_YES_OR_NO:
                    once = event.message
                else:
                    once = event.code
                if once in self._reported:
                    return None
                self._reported.add(once)
            elif event.code == STORE_LOST:
                self.backend = "cpu"
        elif isinstance(event, QueryChanged):
            self._settle(lambda command: isinstance(command, Ask))
            if event.error is None:
                self._query = event.query
        elif isinstance(event, VerdictChanged):
            if event.to == self._verdicts_reported.get(event.watch):
                return None
            self._verdicts_reported[event.watch] = event.to
        elif isinstance(event, WatchesChanged):
            name = event.watch
            command = self._settle(lambda other: isinstance(other, (AddWatch, RemoveWatch)) and other.name == name)
            self._watch_set.note(event, command)
            names = {watch.name for watch in event.watches}
            self._verdicts_reported = {name: to for name, to in self._verdicts_reported.items() if name in names}
        self.watches.note(event)
        return self._rebaser.apply(event)

    def next_config(self) -> Config:
        """Begins another frame worker; returns its configuration, which continues from the present position."""
        self._drops_before = self._drops_before + self._drops  # another object: any thread reads the one there was
        self._drops = Counter()
        answer = self._config.answer.model_copy(update={"query": self._query})
        rest = {"answer": answer, "capture": self._rest_of_source()}
        return self._watch_set.of(self._config.model_copy(update=rest))

    def _rest_of_source(self) -> CaptureConfig:
        capture = self._config.capture
        begin_s = self._rebaser.next_epoch(self._clock.now_ns())
        if begin_s is None:
            return capture
        rest: dict[str, object] = {} if self._rebaser.live else {"start_s": begin_s}
        if capture.duration_s is not None:
            rest["duration_s"] = max(LEAST_PART_S, capture.start_s + capture.duration_s - begin_s)
        if capture.max_frames is not None:
            rest["max_frames"] = max(1, capture.max_frames - self._rebaser.frames_before)
        return capture.model_copy(update=rest)


_FRAMES = ("frame_index", "by_frame_index")
_TIMES = ("pts_s", "start_s", "end_s", "since_s", "by_pts_s")
_ANSWERS = ("answer",)
"""Fields of events that count from the beginning of their frame worker. Other times are durations, or of a track."""


class EventRebaser:
    """Adds the totals of earlier frame workers to the numbers and times of the present one. Pure.

    A live source counts time from the moment at which it was opened, so the time that was lost is added as well; a file
    is reopened at the position that it would have reached, and keeps its own times.
    """

    def __init__(self, live: bool = True) -> None:
        self.live = live
        self._frames = self._answers = 0
        self._next_frame = self._next_answer = 0
        self._shift_s = 0.0
        self._last: FrameReady | None = None
        self._after_restart = False

    @property
    def frames_before(self) -> int:
        """Number of frames before the present frame worker."""
        return self._frames

    def apply(self, event: Event) -> Event:
        """The event as the whole run counts."""
        if self._after_restart and isinstance(event, FrameReady):
            if self.live and self._last is not None:
                gone_s = (event.capture_ns - self._last.capture_ns) / NS_PER_S
                self._shift_s = self._last.pts_s + gone_s - event.pts_s
            self._after_restart = False
        if self._frames or self._answers or self._shift_s:
            event = self._shifted(event)
        if isinstance(event, FrameReady):
            self._next_frame = event.frame_index + 1
            self._last = event
        elif (answer := asdict(event).get("answer")) is not None:
            self._next_answer = max(self._next_answer, answer + 1)
        return event

    def _shifted(self, event: Event) -> Event:
        fields = asdict(event)  # no properties: they follow from the fields, and cannot be replaced
        changed: dict[str, Any] = {}
        for names, shift in ((_FRAMES, self._frames), (_TIMES, self._shift_s), (_ANSWERS, self._answers)):
            changed |= {name: value + shift for name in names if (value := fields.get(name)) is not None}
        if isinstance(event, Explanation) and event.memory is not None:
            changed["memory"] = [replace(token, since_s=token.since_s + self._shift_s) for token in event.memory]
        return replace(event, **changed) if changed else event

    def next_epoch(self, now_ns: int) -> float | None:
        """Another frame worker begins: the media time that a file is at by now; None for the first one."""
        if self._last is None:
            return None
        self._frames = self._next_frame
        self._answers = self._next_answer
        self._after_restart = True
        return self._last.pts_s + max(0, now_ns - self._last.capture_ns) / NS_PER_S
