"""The runs of a measurement: one after the other, two configurations by turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from arr_coc.errors import ArrCocError
from stream.config import Config
from stream.display.choice import open_display
from stream.errors import StreamError
from stream.extensions.bench.report import Report, RunRecord, report
from stream.extensions.bench.series import Series
from stream.monitor.health import RunHandle
from stream.monitor.metrics import TRIM_S
from stream.monitor.statistics import MemorySampler
from stream.runtime.session import open_run, run_session
from stream.sinks.base import Display


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """A measurement: one configuration by name, or two by turns, each run `runs` times."""

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
class BenchResult:
    """Result of a plan. `interrupted`: the user stopped it; `failure`: an error ended it after some runs had been
    made."""

    series: tuple[Series, ...]
    scheduled: bool
    interrupted: bool = False
    failure: StreamError | ArrCocError | None = None


def record_run(
    config: Config,
    terminal: Display,
    limit_s: float | None = None,
    make_run: Callable[[Config], RunHandle] = open_run,
) -> RunRecord:
    """Record one run.

    Args:
        config: Configuration of the run.
        terminal: Display of the run.
        limit_s: End the run this many seconds after its first frame; None for no limit.
        make_run: Opens the run.

    Raises:
        StreamError: The source or an output failed.
        ArrCocError: The model or a backend failed.
    """
    record = RunRecord()
    with ExitStack() as stack:

        def make_recorded(config: Config) -> RunHandle:
            run = make_run(config)
            record.statistics = run.statistics
            record.scheduled = config.capture.realtime or run.source_info.live
            record.memory = stack.enter_context(MemorySampler(run.processes)).samples
            return run

        run_session(config, terminal, [record], make_recorded, limit_s=limit_s)
    return record


def measure(
    plan: BenchPlan, on_run: Callable[[int, str], None], make_run: Callable[[Config], RunHandle] = open_run
) -> BenchResult:
    """Runs a plan; `on_run` is called with the number and name of each run before it.

    Raises StreamError or ArrCocError if the first run fails; a later one that fails only ends the plan.
    """
    reports: dict[str, list[Report]] = {name: [] for name in plan.configs}
    scheduled = False
    interrupted = False
    failure: StreamError | ArrCocError | None = None
    for number, name in plan.turns():
        on_run(number, name)
        has_reports = any(reports.values())
        try:
            record = record_run(plan.configs[name], open_display(captions=False), plan.limit_s, make_run)
        except (StreamError, ArrCocError) as error:
            if not has_reports:
                raise
            failure = error
            break
        scheduled = scheduled or record.scheduled
        measured = report(record, warmup_s=plan.warmup_s)
        interrupted = measured.ended in ("interrupted", "cancelled")  # the ends of a run that the user has stopped
        if not (interrupted and has_reports):
            reports[name].append(measured)
        if interrupted:
            break
    series = tuple(Series(name, plan.configs[name], tuple(runs)) for name, runs in reports.items() if runs)
    return BenchResult(series, scheduled, interrupted, failure)
