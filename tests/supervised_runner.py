"""Supervised runs of a drawn scene at its own pace, and everything that they told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from stream.config import AnswerConfig, CaptureConfig, Config, PipelineConfig
from stream.events import Event, FrameReady, Restarted, Summary
from stream.runtime.supervised import SupervisedRun
from tests.waiting import LIMIT_S

E = TypeVar("E", bound=Event)

ENDLESS = "scene:paced-720p30"
"""An hour long: a run of it ends when the test says so, however long its processes take to start."""

RUN_LIMIT_S = 5 * LIMIT_S
"""Several processes start one after the other."""


@dataclass
class Seen:
    """What a run has told so far."""

    run: SupervisedRun
    events: list[Event] = field(default_factory=list)
    error: Exception | None = None
    done: set[str] = field(default_factory=set)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def summary(self) -> Summary:
        assert isinstance(self.events[-1], Summary)
        return self.events[-1]

    def since(self, kind: type[Event]) -> list[Event]:
        """What was told after the last event of that kind; everything where there was none."""
        at = max((index for index, event in enumerate(self.events) if isinstance(event, kind)), default=-1)
        return self.events[at + 1 :]

    def once(self, what: str, when: bool) -> bool:
        """True for the first time that `when` is."""
        if not when or what in self.done:
            return False
        self.done.add(what)
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


def watch(run: SupervisedRun, on_event: Callable[[Seen, Event], None]) -> Seen:
    """Reads the run to its end; fails one that goes on for too long."""
    seen = Seen(run)
    begin_s = time.monotonic()
    try:
        for event in run.run():
            seen.events.append(event)
            on_event(seen, event)
            if seen.once("limit", time.monotonic() - begin_s > RUN_LIMIT_S):
                run.cancel()
    except Exception as error:
        seen.error = error
    assert "limit" not in seen.done, "it went on for too long"
    return seen


def open_supervised(speaker: str = "FakeSpeaker", given: Config | None = None) -> SupervisedRun:
    return SupervisedRun(given or config(), speaker=f"tests.fake_speaker:{speaker}")
