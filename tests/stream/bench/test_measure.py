"""Making the runs: their order, their limits, and what becomes of those that are stopped or fail."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from stream.bench.measure import BenchPlan, BenchResult, measure, record_run
from stream.bench.report import RunRecord
from stream.clock import FakeClock
from stream.config import CaptureConfig, Config
from stream.display.progress import ProgressDisplay
from stream.errors import StageDied
from stream.events import Event
from stream.media import Overlay
from stream.monitor.statistics import RunStatistics
from stream.sources import SourceInfo
from tests.support.events import frame, summary


class ScriptedRun:
    """Gives twenty frames and a summary, or fails; with `endless`, gives the summary only once it is told to end."""

    def __init__(
        self, *, ended: str = "finished", fails: bool = False, live: bool = False, endless: bool = False
    ) -> None:
        self.source_info = SourceInfo("x", 64, 64, 25.0, None, None, live, "h264", "yuv420p")
        self.statistics = RunStatistics(FakeClock())
        self._ended, self._fails, self._endless = ended, fails, endless
        self._told = threading.Event()

    def end(self) -> None:
        self._ended = "interrupted"
        self._told.set()

    def cancel(self) -> None:
        self._told.set()

    def ask(self, query: str) -> None:
        raise NotImplementedError

    def processes(self) -> dict[str, int]:
        return {"frames": os.getpid()}

    def drops(self) -> dict[str, int]:
        return {}

    def take_overlay(self, slot: int) -> Overlay:
        raise NotImplementedError

    def run(self) -> Iterator[Event]:
        for index in range(20):
            yield frame(index, index / 25)
        if self._endless:
            assert self._told.wait(10)
        if self._fails:
            raise StageDied("answer", "it fell")
        yield summary(ended=self._ended)


class Studio:
    """Hands out scripted runs, in order, and remembers the configurations that they were made for."""

    def __init__(self, *runs: ScriptedRun) -> None:
        self._runs = list(runs)
        self.budgets: list[object] = []
        self.told: list[tuple[int, str]] = []

    def make(self, config: Config) -> ScriptedRun:
        self.budgets.append(config.allocate.budget)
        return self._runs.pop(0)

    def measure(self, plan: BenchPlan) -> BenchResult:
        return measure(plan, lambda number, name: self.told.append((number, name)), self.make)


A = Config()
B = Config.model_validate({"allocate": {"budget": 64}})


def recorded(run: ScriptedRun, config: Config = A) -> RunRecord:
    return record_run(config, ProgressDisplay(captions=False), make_run=lambda _: run)


def test_two_configurations_take_turns() -> None:
    studio = Studio(*(ScriptedRun() for _ in range(4)))
    measured = studio.measure(BenchPlan({"A": A, "B": B}, runs=2))
    assert studio.told == [(1, "A"), (1, "B"), (2, "A"), (2, "B")]
    assert studio.budgets == ["auto", 64, "auto", 64]
    assert [(one.name, len(one.runs)) for one in measured.series] == [("A", 2), ("B", 2)]
    assert (measured.interrupted, measured.failure) == (False, None)


def test_jitter_is_measured_where_there_is_a_schedule() -> None:
    assert not recorded(ScriptedRun()).scheduled
    assert recorded(ScriptedRun(live=True)).scheduled
    assert recorded(ScriptedRun(), Config(capture=CaptureConfig(realtime=True))).scheduled


def test_memory_is_sampled() -> None:
    assert recorded(ScriptedRun()).memory[0].rss_bytes["frames"] > 10_000_000


def test_a_run_ends_when_its_time_is_up() -> None:
    measured = Studio(ScriptedRun(endless=True), ScriptedRun(endless=True)).measure(BenchPlan({"A": A}, 2, 0.01))
    assert [run.ended for run in measured.series[0].runs] == ["elapsed", "elapsed"]
    assert not measured.interrupted


def test_a_run_that_the_user_stops_is_the_last_and_counts_only_where_it_is_the_first() -> None:
    alone = Studio(ScriptedRun(ended="interrupted")).measure(BenchPlan({"A": A}, 3))
    assert (alone.interrupted, len(alone.series[0].runs)) == (True, 1)
    later = Studio(ScriptedRun(), ScriptedRun(ended="cancelled")).measure(BenchPlan({"A": A}, 3))
    assert (later.interrupted, len(later.series[0].runs)) == (True, 1)


def test_the_first_run_s_failure_is_raised_and_a_later_one_s_keeps_what_was_measured() -> None:
    with pytest.raises(StageDied):
        Studio(ScriptedRun(fails=True)).measure(BenchPlan({"A": A}, 3))
    measured = Studio(ScriptedRun(), ScriptedRun(fails=True)).measure(BenchPlan({"A": A, "B": B}))
    assert isinstance(measured.failure, StageDied)
    assert [one.name for one in measured.series] == ["A"]


def test_a_warm_up_is_left_out() -> None:
    measured = Studio(ScriptedRun()).measure(BenchPlan({"A": A}, warmup_s=0.1))
    assert measured.series[0].runs[0].left_out_s == (0.0, 0.0)
