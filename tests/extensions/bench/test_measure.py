"""Making the runs: their order, their limits, and runs that are stopped or fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stream.config import CaptureConfig, Config
from stream.display.progress import ProgressDisplay
from stream.errors import StageDied
from stream.extensions.bench.measure import BenchPlan, BenchResult, measure, record_run
from stream.extensions.bench.report import RunRecord
from tests.support.events import frame, summary
from tests.support.runs import INFO, EndlessRun, ScriptedRun

FRAMES = [frame(index, index / 25) for index in range(20)]


def scripted(*, ended: str = "finished", fails: bool = False, live: bool = False) -> ScriptedRun:
    """A run that yields twenty frames and a summary, or fails."""
    run = ScriptedRun(FRAMES, StageDied("answer", "it fell")) if fails else ScriptedRun([*FRAMES, summary(ended=ended)])
    run.source_info = replace(INFO, live=live)
    return run


class Studio:
    """Hands out scripted runs, in order, and remembers the configurations that they were made for."""

    def __init__(self, *runs: ScriptedRun) -> None:
        self._runs = list(runs)
        self.budgets: list[object] = []
        self.reported: list[tuple[int, str]] = []

    def make(self, config: Config) -> ScriptedRun:
        self.budgets.append(config.allocate.budget)
        return self._runs.pop(0)

    def measure(self, plan: BenchPlan) -> BenchResult:
        return measure(plan, lambda number, name: self.reported.append((number, name)), self.make)


A = Config()
B = Config.model_validate({"allocate": {"budget": 64}})


def recorded(run: ScriptedRun, config: Config = A) -> RunRecord:
    return record_run(config, ProgressDisplay(captions=False), make_run=lambda _: run)


def test_two_configurations_take_turns() -> None:
    studio = Studio(*(scripted() for _ in range(4)))
    measured = studio.measure(BenchPlan({"A": A, "B": B}, runs=2))
    assert studio.reported == [(1, "A"), (1, "B"), (2, "A"), (2, "B")]
    assert studio.budgets == ["auto", 64, "auto", 64]
    assert [(variant.name, len(variant.runs)) for variant in measured.series] == [("A", 2), ("B", 2)]
    assert (measured.interrupted, measured.failure) == (False, None)


def test_jitter_is_measured_if_there_is_a_schedule() -> None:
    assert not recorded(scripted()).scheduled
    assert recorded(scripted(live=True)).scheduled
    assert recorded(scripted(), Config(capture=CaptureConfig(realtime=True))).scheduled


def test_memory_is_sampled() -> None:
    assert recorded(scripted()).memory[0].rss_bytes["frames"] > 10_000_000


def test_a_run_ends_when_its_time_is_up() -> None:
    measured = Studio(EndlessRun(FRAMES), EndlessRun(FRAMES)).measure(BenchPlan({"A": A}, 2, 0.01))
    assert [run.ended for run in measured.series[0].runs] == ["elapsed", "elapsed"]
    assert not measured.interrupted


def test_a_run_that_the_user_stops_is_the_last_and_counts_only_if_it_is_the_first() -> None:
    first_stopped = Studio(scripted(ended="interrupted")).measure(BenchPlan({"A": A}, 3))
    assert (first_stopped.interrupted, len(first_stopped.series[0].runs)) == (True, 1)
    second_stopped = Studio(scripted(), scripted(ended="cancelled")).measure(BenchPlan({"A": A}, 3))
    assert (second_stopped.interrupted, len(second_stopped.series[0].runs)) == (True, 1)


def test_the_first_run_s_failure_is_raised_and_a_later_one_s_keeps_what_was_measured() -> None:
    with pytest.raises(StageDied):
        Studio(scripted(fails=True)).measure(BenchPlan({"A": A}, 3))
    measured = Studio(scripted(), scripted(fails=True)).measure(BenchPlan({"A": A, "B": B}))
    assert isinstance(measured.failure, StageDied)
    assert [variant.name for variant in measured.series] == ["A"]


def test_a_warm_up_is_left_out() -> None:
    measured = Studio(scripted()).measure(BenchPlan({"A": A}, warmup_s=0.1))
    assert measured.series[0].runs[0].left_out_s == (0.0, 0.0)
