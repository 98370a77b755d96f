"""What a run did, kept to be measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from stream.bench.kept_frames import KeptFrames
from stream.clock import MonotonicClock
from stream.events import Answer, Cut, Event, FrameReady, Summary
from stream.monitor.memory import MemorySample
from stream.monitor.statistics import RunStatistics
from stream.sinks.base import Sink


@dataclass
class Recorder(Sink):
    """Keeps the frames, answers and cuts of a run, counts its faults, and holds the samples of its memory.

    `scheduled`: frames came at a pace of their own, so jitter has a meaning.
    """

    scheduled: bool = False
    frames: KeptFrames = field(default_factory=KeptFrames)
    answers: list[Answer] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    statistics: RunStatistics = field(default_factory=lambda: RunStatistics(MonotonicClock()))
    summary: Summary | None = None
    memory: list[MemorySample] = field(default_factory=list)

    def write(self, event: Event) -> None:
        if isinstance(event, FrameReady):
            self.frames.append(event)
        elif isinstance(event, Answer):
            self.answers.append(event)
        elif isinstance(event, Cut):
            self.cuts.append(event)
        elif isinstance(event, Summary):
            self.summary = event

    def close(self) -> None:
        """Nothing to let go of."""
