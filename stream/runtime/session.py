"""One run from configuration to finished outputs: events go to every sink, signals and a time limit end it well."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from stream.config import CaptureConfig, Config
from stream.control import signals_handled
from stream.events import Event, FrameReady, Summary
from stream.monitor.health import RunHandle
from stream.recording.format import claimed_folder
from stream.sinks.base import Display, Sink
from stream.sinks.factory import open_services, open_sinks
from stream.sources import SourceInfo
from stream.sources.address import is_live_address, is_read_once

if TYPE_CHECKING:
    from stream.runtime.answer_worker import AnswerWorker
    from stream.runtime.pipeline import Pipeline
    from stream.runtime.supervised import SupervisedRun


def open_run(config: Config, shared: AnswerWorker | None = None) -> Pipeline | SupervisedRun:
    """The run of a configuration; `shared` answers, unless all stages are under supervision.

    Raises StreamError or ArrCocError where it cannot begin.
    """
    if supervised(config):
        from stream.runtime.supervised import SupervisedRun

        return SupervisedRun(config)
    from stream.runtime.pipeline import Pipeline

    return Pipeline(config, shared=shared)


def supervised(config: Config) -> bool:
    """Whether the frame stages are a process that is started again when it dies.

    Only where frames come at their own pace: a file that is read without a loss cannot go on without what was lost. Not
    where the source can be read once only, because a second process could not go on from there. Nor where a heat map is
    drawn, whose pictures stay in the process that captures them. The answer process may be started again in any case.
    """
    if config.pipeline.single_process or config.output.heatmap is not None or is_read_once(config.source):
        return False
    live = is_live_address(config.source)
    restart = live if config.pipeline.restart is None else config.pipeline.restart
    return restart and (live or config.capture.realtime)


FINISHING = {
    signal.SIGINT: "finishing what is in flight; press Ctrl-C again to stop now",
    signal.SIGTERM: "SIGTERM: finishing what is in flight; a second one stops now",
    signal.SIGHUP: "SIGHUP, the terminal is gone: finishing what is in flight; SIGTERM stops now",
}
STOPPING = "stopping now"


class Stoppable(Protocol):
    """What signals act on."""

    def end(self) -> None: ...

    def cancel(self) -> None: ...


def run_session(
    config: Config,
    terminal: Display,
    extra: Sequence[Sink] = (),
    make_run: Callable[[Config], RunHandle] = open_run,
    *,
    resume: bool = False,
    limit_s: float | None = None,
) -> Summary:
    """Runs the pipeline into the configured outputs, `extra` and the terminal; returns the run's summary.

    `resume`: the run continues an earlier one, whose captions are in the outputs. `limit_s` ends it so many seconds
    after its first frame.

    For the main thread, because signals are. Outputs are claimed before the source is opened, and closed however the
    run ends. Raises StreamError or ArrCocError.
    """
    with ExitStack() as stack:
        stack.callback(terminal.close)
        opened = open_sinks(config.output, config.source, lambda slot: pipeline.take_overlay(slot), resume=resume)
        for sink in opened:
            stack.callback(sink.close)
        if config.output.record is not None:
            stack.enter_context(claimed_folder(config.output.record))
        monitor, services = open_services(config)
        sinks = [*opened, *services, *extra]
        for sink in (*services, *extra):
            stack.callback(sink.close)
        pipeline = make_run(config)
        monitor.follow(pipeline)
        limit = None if limit_s is None else TimeLimit(pipeline, limit_s)
        stack.enter_context(signals_end(limit or pipeline, terminal))
        events = pipeline.run()
        if isinstance(events, Generator):
            stack.callback(events.close)
        if limit is not None:
            events = stack.enter_context(closing(limit.events(events)))
        terminal.attach(pipeline, expected_frames(pipeline.source_info, config.capture))
        return deliver(events, [*sinks, terminal])


def deliver(events: Iterator[Event], sinks: Sequence[Sink]) -> Summary:
    """Gives every event to every sink, in order, and returns the summary, which is the last."""
    summary: Summary | None = None
    for event in events:
        for sink in sinks:
            sink.write(event)
        if isinstance(event, Summary):
            summary = event
    assert summary is not None, "a run ends with a summary or an error"
    return summary


def expected_frames(info: SourceInfo, capture: CaptureConfig) -> int | None:
    """Frames that the source will give, as far as its container, the part that is read and the limit tell."""
    frames, limit = info.frames, capture.max_frames
    if info.fps is not None and info.duration_ns is not None and (capture.start_s or capture.duration_s):
        left_s = max(0.0, info.duration_ns / 1e9 - capture.start_s)
        frames = round(min(left_s, capture.duration_s or left_s) * info.fps)
    if frames is None and info.duration_ns is not None and info.fps is not None:
        frames = round(info.duration_ns / 1e9 * info.fps)
    if frames is None or limit is None:
        return frames if limit is None else limit
    return min(frames, limit)


@contextmanager
def signals_end(run: Stoppable, terminal: Display) -> Iterator[None]:
    """While inside: the first SIGINT, SIGTERM or SIGHUP ends the run well, the second cancels it, a third kills.

    A SIGHUP after another signal changes nothing: a terminal that is closed sends several.
    """
    count = 0

    def on_signal(number: signal.Signals) -> None:
        nonlocal count
        if number == signal.SIGHUP and count:
            return
        count += 1
        if count == 1:
            run.end()
            terminal.show_message(FINISHING[number])
        elif count == 2:
            run.cancel()
            terminal.show_message(STOPPING)
        else:
            raise KeyboardInterrupt

    with signals_handled(on_signal):
        yield


ELAPSED = "elapsed"
"""How such a run ended, in its summary."""


class Endable(Protocol):
    def end(self) -> None: ...

    def cancel(self) -> None: ...


class Timer(Protocol):
    def start(self) -> None: ...

    def cancel(self) -> None: ...


def _timer(seconds: float, call: Callable[[], None]) -> Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    return timer


class TimeLimit:
    """Stands between a run and those who end it, so that whoever was first counts.

    The time begins with the first frame, and passes whether or not more of them come.
    """

    def __init__(
        self, run: Endable, seconds: float, make_timer: Callable[[float, Callable[[], None]], Timer] = _timer
    ) -> None:
        self._run = run
        self._timer = make_timer(seconds, self._over)
        self._elapsed = False
        self._ended = False

    def end(self) -> None:
        self._ended = True
        self._run.end()

    def cancel(self) -> None:
        self._run.cancel()

    def events(self, events: Iterator[Event]) -> Generator[Event, None, None]:
        """The run's events; the summary says where it was the time that ended it."""
        started = False
        try:
            for event in events:
                if not started and isinstance(event, FrameReady):
                    started = True
                    self._timer.start()
                elif isinstance(event, Summary) and self._elapsed and event.ended == "interrupted":
                    event = replace(event, ended=ELAPSED)
                yield event
        finally:
            self._timer.cancel()

    def _over(self) -> None:
        if not self._ended:
            self._elapsed = True
            self._run.end()
