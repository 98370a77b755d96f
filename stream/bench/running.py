"""Makes the runs that are measured: one after the other, two configurations by turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from arr_coc.errors import ArrCocError
from stream.bench.recorder import Recorder
from stream.bench.report import Report, report
from stream.bench.series import Series
from stream.config import Config
from stream.display import open_display
from stream.errors import StreamError
from stream.monitor.health import RunHandle
from stream.monitor.memory import MemorySampler
from stream.monitor.metrics import TRIM_S
from stream.runtime.session import open_run, run_session
from stream.sinks.base import Display

STOPPED = ("interrupted", "cancelled")
"""How a run ends that the user has stopped."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured: one configuration by name, or two by turns, each `runs` times."""

    configs: Mapping[str, Config]
    runs: int = 1
    limit_s: float | None = None
    warmup_s: float = TRIM_S

    def turns(self) -> Iterator[tuple[int, str]]:
        """(number of the run from 1, name of its configuration): A B A B…, so that drift falls on both."""
        for number in range(1, self.runs + 1):
            for name in self.configs:
                yield number, name


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a plan. `interrupted`: the user stopped it; `failure`: what ended it after some runs had been
    made."""

    series: tuple[Series, ...]
    scheduled: bool
    interrupted: bool = False
    failure: StreamError | ArrCocError | None = None


def record(
    config: Config,
    terminal: Display,
    limit_s: float | None = None,
    make_run: Callable[[Config], RunHandle] = open_run,
) -> Recorder:
    """One run, recorded. Raises StreamError or ArrCocError."""
    recorder = Recorder()
    with ExitStack() as stack:

        def watched(config: Config) -> RunHandle:
            run = make_run(config)
            recorder.statistics = run.statistics
            recorder.scheduled = config.capture.realtime or run.source_info.live
            recorder.memory = stack.enter_context(MemorySampler(run.processes)).samples
            return run

        run_session(config, terminal, [recorder], watched, limit_s=limit_s)
    return recorder


def measure(
    plan: Plan, tell: Callable[[int, str], None], make_run: Callable[[Config], RunHandle] = open_run
) -> Measured:
    """Makes the runs of a plan; `tell` hears of each before it begins.

    Raises StreamError or ArrCocError where the first run fails; a later one that fails only ends the plan.
    """
    reports: dict[str, list[Report]] = {name: [] for name in plan.configs}
    scheduled, interrupted = False, False
    failure: StreamError | ArrCocError | None = None
    for number, name in plan.turns():
        tell(number, name)
        begun = any(reports.values())
        try:
            recorder = record(plan.configs[name], open_display(captions=False), plan.limit_s, make_run)
        except (StreamError, ArrCocError) as error:
            if not begun:
                raise
            failure = error
            break
        scheduled = scheduled or recorder.scheduled
        measured = report(recorder, warmup_s=plan.warmup_s)
        interrupted = measured.ended in STOPPED
        if not (interrupted and begun):
            reports[name].append(measured)
        if interrupted:
            break
    series = tuple(Series(name, plan.configs[name], tuple(runs)) for name, runs in reports.items() if runs)
    return Measured(series, scheduled, interrupted, failure)
