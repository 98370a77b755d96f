"""Session of one run: opens the run and its outputs, passes every event to every sink, and ends in good order."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stream.clock import TimeOfDay
from stream.config import CaptureConfig, Config
from stream.control import ELAPSED, signals_handled
from stream.events import Event, FrameReady, Summary
from stream.extension import SinkType
from stream.monitor.health import RunHandle, RunMonitor
from stream.monitor.service_manager import ServiceManager, ServiceState
from stream.sinks.base import Display, ReportingSink, Sink
from stream.sinks.factory import open_sinks
from stream.sources import SourceInfo
from stream.sources.address import is_live_address, is_read_once

if TYPE_CHECKING:
    from stream.runtime.answer_service import AnswerService
    from stream.runtime.run import Run


def open_run(config: Config, answers: AnswerService | None = None) -> Run:
    """Opens the run of a configuration; `answers` answers, unless all stages are supervised.

    Raises StreamError or ArrCocError if it cannot begin.
    """
    if is_supervised(config):
        from stream.runtime.frame_process import run_in_child

        return run_in_child(config)
    from stream.runtime.frame_stages import run_in_threads

    return run_in_threads(config, answers=answers)


def is_supervised(config: Config) -> bool:
    """Returns whether the frame stages run in a process that is started again when it dies.

    Only if frames come at their own pace: a file that is read without a loss cannot go on after one. Not if the source
    can be read only once: a second process could not continue. The answer process may be started again in any case.
    """
    if config.pipeline.single_process or is_read_once(config.source):
        return False
    live = is_live_address(config.source)
    if config.pipeline.restart is None:
        restart = live
    else:
        restart = config.pipeline.restart
    return restart and (live or config.capture.realtime)


FINISHING = {
    signal.SIGINT: "finishing what is in flight; press Ctrl-C again to stop now",
    signal.SIGTERM: "SIGTERM: finishing what is in flight; a second one stops now",
    signal.SIGHUP: "SIGHUP, the terminal is gone: finishing what is in flight; SIGTERM stops now",
}
STOPPING = "stopping now"


def run_session(
    config: Config,
    terminal: Display,
    extra: Sequence[Sink] = (),
    make_run: Callable[[Config], RunHandle] = open_run,
    *,
    camera: str = "",
    resume: bool = False,
    limit_s: float | None = None,
    left_out: Collection[SinkType] = (),
    monitor: RunMonitor | None = None,
    signals: bool = True,
) -> Summary:
    """Runs a configuration into its outputs and the terminal; returns the run's summary.

    Outputs are claimed before the source is opened, and closed however the run ends.

    Args:
        config: Configuration of the run.
        terminal: Display of the run, which is closed with it.
        extra: Sinks besides those of the configuration.
        make_run: Opens the run.
        camera: Name of the run's camera, if there are several.
        resume: The run continues an earlier one, whose captions are in the outputs.
        limit_s: Ends the run this many seconds after its first frame; None for no limit.
        left_out: Types of sinks that are opened elsewhere, as `extra`.
        monitor: Monitor of the run, if shared with other runs.
        signals: Signals end the run, which must then be in the main thread; otherwise the caller ends it.

    Raises:
        StreamError: The source, an output or a stage failed.
        ArrCocError: The model or a backend failed.
    """
    with ExitStack() as stack:
        stack.callback(terminal.close)
        is_shared = monitor is not None
        if monitor is None:
            monitor = RunMonitor(config)
        manager = None
        if signals and not is_shared:
            manager = ServiceManager.of_environment(partial(service_state, monitor))
        if manager is not None:
            stack.callback(manager.close)
        for sink in extra:
            stack.callback(sink.close)
        monitored = is_shared or manager is not None
        sinks = open_sinks(config, monitor, camera=camera, left_out=left_out, monitored=monitored, resume=resume)
        for sink in sinks:
            stack.callback(sink.close)
        sinks += extra
        run = make_run(config)
        monitor.follow(run)
        if signals:
            stack.enter_context(signals_end(run, terminal))
        events = run.run()
        if isinstance(events, Generator):
            stack.callback(events.close)
        if run.source_info.live:
            events = with_time_of_day(events)
        if limit_s is not None:
            events = stack.enter_context(closing(end_in_time(events, run, limit_s)))
        terminal.attach(run, expected_frames(run.source_info, config.capture))
        return deliver(events, [*sinks, terminal])


def service_state(monitor: RunMonitor) -> ServiceState:
    """Returns the state of a run for a service manager: ready with the first frame, and alive for as long as frames or
    answers come. A lost source is no reason to restart the run, because the source is opened again."""
    health = monitor.health()
    if health.reason is None:
        status = health.status
    else:
        status = f"{health.status}: {health.reason}"
    return ServiceState(status, ready=health.status != "loading", alive=health.status != "stalled")


def with_time_of_day(events: Iterator[Event], wall_s: Callable[[], float] = time.time) -> Iterator[Event]:
    """Yields the events of a live source, those of a frame with its time of day."""
    times = TimeOfDay(wall_s)
    for event in events:
        if isinstance(event, FrameReady):
            times.sync(event.pts_s, event.latency_s)
            yield event
            continue
        pts_s = getattr(event, "pts_s", None)
        at = None if pts_s is None else times.at(pts_s)
        yield event if at is None else replace(event, time=at.isoformat(timespec="milliseconds"))


def deliver(events: Iterator[Event], sinks: Sequence[Sink]) -> Summary:
    """Writes every event, and those that sinks make, to every sink, in order; returns the summary, which is the last
    event."""
    summary: Summary | None = None
    reporters = [sink for sink in sinks if isinstance(sink, ReportingSink)]
    for event in events:
        for report in [report for reporter in reporters for report in reporter.take_events(event)]:
            for sink in sinks:
                sink.write(report)
        for sink in sinks:
            sink.write(event)
        if isinstance(event, Summary):
            summary = event
    assert summary is not None, "a run ends with a summary or an error"
    return summary


def expected_frames(info: SourceInfo, capture: CaptureConfig) -> int | None:
    """Returns the number of frames of the source, as far as its container, the part to read and the limit show it."""
    frames = info.frames
    limit = capture.max_frames
    if info.fps is not None and info.duration_ns is not None and (capture.start_s or capture.duration_s):
        left_s = max(0.0, info.duration_ns / 1e9 - capture.start_s)
        frames = round(min(left_s, capture.duration_s or left_s) * info.fps)
    if frames is None and info.duration_ns is not None and info.fps is not None:
        frames = round(info.duration_ns / 1e9 * info.fps)
    if frames is None or limit is None:
        return frames if limit is None else limit
    return min(frames, limit)


@contextmanager
def signals_end(run: RunHandle, terminal: Display) -> Iterator[None]:
    """Context manager in which signals end the run: the first ends it well, the second cancels it, a third kills.

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


def end_in_time(
    events: Iterator[Event],
    run: RunHandle,
    limit_s: float,
    make_timer: Callable[..., threading.Timer] = threading.Timer,
) -> Generator[Event, None, None]:
    """Passes the run's events on, and ends the run in time, whether or not more frames come.

    Args:
        events: Events of the run.
        run: The run, which the timer ends.
        limit_s: Seconds from its first frame to its end.
        make_timer: Makes the timer from its interval in seconds, function and arguments.
    """
    timer = make_timer(limit_s, run.end, [ELAPSED])
    timer.daemon = True
    started = False
    try:
        for event in events:
            if not started and isinstance(event, FrameReady):
                started = True
                timer.start()
            yield event
    finally:
        timer.cancel()
