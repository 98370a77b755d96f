"""Runs without stages, for displays and for code that ends runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from stream.clock import Clock, MonotonicClock
from stream.config import AnswerConfig, CaptureConfig, Config, PipelineConfig
from stream.control import INTERRUPTED, Command, RunControl
from stream.events import Event, FrameReady, Restarted, Summary
from stream.media import AllocationOverlay
from stream.monitor.statistics import RunStatistics
from stream.protocol.messages import Message
from stream.runtime.frame_process import run_in_child
from stream.runtime.run import Run
from stream.sources import SourceInfo
from stream.stages.base import Stage, StageThread
from stream.transport import Envelope, EventReceiver, Link, ServerLink, Transport
from tests.support.events import summary
from tests.support.network import LIMIT_MS, LIMIT_S

INFO = SourceInfo("a", 64, 64, 25.0, 2_000_000_000, None, False, "h264", "yuv420p")


class ScriptedRun:
    """Yields the events, and then raises the error, if any."""

    source_info = INFO

    def __init__(self, events: list[Event], error: Exception | None = None) -> None:
        self.events, self.error = events, error
        self.calls: list[str] = []
        self.commands: list[Command] = []
        self.dropped: dict[str, int] = {}
        self.closed = False
        self.statistics = RunStatistics(MonotonicClock(), INFO.fps)

    def run(self) -> Iterator[Event]:
        try:
            for event in self.events:
                self.statistics.add(event)
                yield event
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True

    def take_overlay(self, slot: int) -> AllocationOverlay:
        raise AssertionError("no overlays here")

    def send(self, command: Command) -> None:
        self.commands.append(command)

    def processes(self) -> dict[str, int]:
        return {"frames": os.getpid()}

    def drops(self) -> dict[str, int]:
        return self.dropped

    def end(self, outcome: str = INTERRUPTED) -> None:
        self.calls.append(outcome)

    def cancel(self) -> None:
        self.calls.append("cancel")


class EndlessRun(ScriptedRun):
    """Yields its events, and its summary once it has been ended."""

    def __init__(self, events: list[Event]) -> None:
        super().__init__(events)
        self._ending = threading.Event()

    def run(self) -> Iterator[Event]:
        yield from self.events
        assert self._ending.wait(LIMIT_S), "the run was not ended"
        yield summary(ended=self.calls[0])

    def end(self, outcome: str = INTERRUPTED) -> None:
        super().end(outcome)
        self._ending.set()


WATCHED_INFO = SourceInfo("camera", 64, 48, 25.0, None, None, True, "h264", "yuv420p")


class WatchedRun:
    """Records the commands."""

    source_info = WATCHED_INFO

    def __init__(self, clock: Clock | None = None) -> None:
        self.statistics = RunStatistics(clock or MonotonicClock(), WATCHED_INFO.fps)
        self.commands: list[Any] = []

    def send(self, command: Command) -> None:
        self.commands.append(command)

    def processes(self) -> dict[str, int]:
        return {"frames": os.getpid(), "answers": 2**22 + 1}

    def drops(self) -> dict[str, int]:
        return {"capture.replaced": 2, "texture.replaced": 0}


E = TypeVar("E", bound=Event)

ENDLESS = "scene:paced-720p30"
"""An hour long: a run of it ends on the test's signal, however long its processes take to start."""

RUN_LIMIT_S = 5 * LIMIT_S
"""Several processes start one after the other."""


@dataclass
class RunRecorder:
    """Events of a run so far."""

    run: Run
    events: list[Event] = field(default_factory=list)
    error: Exception | None = None
    names: set[str] = field(default_factory=set)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def summary(self) -> Summary:
        assert isinstance(self.events[-1], Summary)
        return self.events[-1]

    def since(self, kind: type[Event]) -> list[Event]:
        """Events after the last one of that kind; all of them without one."""
        at = max((index for index, event in enumerate(self.events) if isinstance(event, kind)), default=-1)
        return self.events[at + 1 :]

    def once(self, name: str, condition: bool) -> bool:
        """True for the first time that `condition` is."""
        if not condition or name in self.names:
            return False
        self.names.add(name)
        return True

    def signal(self, process: str, number: int = signal.SIGKILL) -> int:
        """Sends a signal to one of the processes; returns the monotonic time of it in ns."""
        moment_ns = time.monotonic_ns()
        os.kill(self.run.processes()[process], number)
        return moment_ns

    def restarts(self) -> list[tuple[str, str, int]]:
        return [(event.process, event.cause, event.count) for event in self.of(Restarted)]

    def frames_rise(self) -> bool:
        """Whether numbers and times of frames only ever rise."""
        pairs = pairwise(self.of(FrameReady))
        return all(a.frame_index < b.frame_index and a.pts_s < b.pts_s for a, b in pairs)


def config(source: str = ENDLESS, *, every_s: float = 0.2, **pipeline: Any) -> Config:
    return Config(
        source=source,
        capture=CaptureConfig(realtime=True, size="128x96"),
        answer=AnswerConfig(every_s=every_s, on_cut=False),
        pipeline=PipelineConfig(**pipeline),
    )


def watch(
    run: Run, on_event: Callable[[RunRecorder, Event], None] | None = None, *, fails: bool = False
) -> RunRecorder:
    """Reads the run to its end; fails one that goes on for too long, and one that fails unless it has to."""
    record = RunRecorder(run)
    begin_s = time.monotonic()
    try:
        for event in run.run():
            record.events.append(event)
            if on_event is not None:
                on_event(record, event)
            if record.once("limit", time.monotonic() - begin_s > RUN_LIMIT_S):
                run.cancel()
    except Exception as error:
        record.error = error
    assert "limit" not in record.names, "it went on for too long"
    assert (record.error is not None) == fails, record.error
    return record


def open_supervised(model: str = "FakeAnswerModel", settings: Config | None = None) -> Run:
    return run_in_child(settings or config(), model_loader=f"tests.support.answer_models:{model}")


M = TypeVar("M", bound=Message)


class StageRunner:
    """A context, a control, and the parts that the test needs of both; closes everything at the end."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.control = RunControl()
        self._links: list[Link | EventReceiver | ServerLink] = []
        self._thread: StageThread | None = None

    def link(self, endpoint: str, *, bind: bool = False) -> Link:
        link = self.transport.link(endpoint, bind=bind)
        self._links.append(link)
        return link

    def closing(self, end: EventReceiver | ServerLink) -> None:
        """Closes `end` with the links."""
        self._links.append(end)

    def start(self, stage: Stage) -> None:
        self._thread = StageThread(stage, self.control)
        self._thread.start()

    def join(self) -> Exception | None:
        """Waits for the stage to end; the failure that it reported."""
        assert self._thread is not None
        self._thread.join(LIMIT_MS / 1000)
        assert not self._thread.is_alive()
        return self.control.failure

    def close(self) -> None:
        self.control.cancel()
        if self._thread is not None:
            self.join()
        for link in self._links:
            link.close()
        self.transport.close()


@contextmanager
def stage_runner() -> Iterator[StageRunner]:
    runner = StageRunner()
    try:
        yield runner
    finally:
        runner.close()


def expect(link: Link, kind: type[M]) -> M:
    """The next message, which must be of this kind."""
    return expect_whole(link, kind)[0]


def expect_whole(link: Link, kind: type[M]) -> tuple[M, Envelope]:
    """The next message, which must be of this kind, and its envelope."""
    received = link.receive(LIMIT_MS)
    assert received is not None, f"no {kind.__name__} came"
    assert isinstance(received.message, kind), f"{received.message} came"
    return received.message, received
