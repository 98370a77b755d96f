"""Supervised runs of a drawn scene at its own pace, and everything that they told, with the time of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from stream.config import AnswerConfig, CaptureConfig, Config, PipelineConfig
from stream.events import Answer, Event, FrameReady, Restarted, Summary
from stream.supervised import SupervisedRun

LIMIT_S = 60.0

E = TypeVar("E", bound=Event)


@dataclass
class Seen:
    """What a run has told so far. `told_s` are the monotonic times of its events."""

    run: SupervisedRun
    events: list[Event] = field(default_factory=list)
    told_s: list[float] = field(default_factory=list)
    error: Exception | None = None
    done: set[str] = field(default_factory=set)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def summary(self) -> Summary:
        assert isinstance(self.events[-1], Summary)
        return self.events[-1]

    def once(self, what: str, when: bool) -> bool:
        """True for the first time that `when` is."""
        if not when or what in self.done:
            return False
        self.done.add(what)
        return True

    @property
    def begun_s(self) -> float:
        """How long the run took to start its answer process and to give the first answer."""
        return self.first_after(Answer, self.told_s[0])[1]

    def first_after(self, kind: type[E], moment_s: float) -> tuple[E, float]:
        """The first such event after a moment, and how many seconds after it."""
        for event, told_s in zip(self.events, self.told_s, strict=True):
            if isinstance(event, kind) and told_s > moment_s:
                return event, told_s - moment_s
        raise AssertionError(f"no {kind.__name__} came after that")

    def signal(self, process: str, number: int = signal.SIGKILL) -> float:
        """Sends a signal to one of the processes; when."""
        moment_s = time.monotonic()
        os.kill(self.run.processes()[process], number)
        return moment_s

    def restarts(self) -> list[tuple[str, str, int]]:
        return [(event.process, event.cause, event.count) for event in self.of(Restarted)]

    def frames_rise(self) -> bool:
        """Whether numbers and times of frames only ever rise."""
        pairs = pairwise(self.of(FrameReady))
        return all(a.frame_index < b.frame_index and a.pts_s < b.pts_s for a, b in pairs)


def config(source: str = "scene:moving", *, every_s: float = 0.2, **pipeline: Any) -> Config:
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
            seen.told_s.append(time.monotonic())
            on_event(seen, event)
            if seen.once("limit", time.monotonic() - begin_s > LIMIT_S):
                run.cancel()
    except Exception as error:
        seen.error = error
    assert "limit" not in seen.done, "it went on for too long"
    return seen


def open_supervised(speaker: str = "FakeSpeaker", given: Config | None = None) -> SupervisedRun:
    return SupervisedRun(given or config(), speaker=f"tests.fake_speaker:{speaker}")
