"""Several runs of one configuration, the comparison of two configurations, and their JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stream.config import Config
from stream.extensions.bench.report import PERCENTILES, Report, config_json
from stream.monitor.machine import machine

SCHEMA = 2
"""Of the JSON that `bench --json` writes; docs/measuring.md describes its keys."""

ENOUGH_RUNS = 5
"""Runs of each that it takes to distinguish a difference from noise. Without a difference, all five of one lie beyond
all five of the other once in 126 times; with three of each, once in ten."""

Verdict = Literal["differs", "noise", "too few runs"]


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over several runs."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None if no run has a value."""
        samples = [value for value in values if value is not None]
        if samples:
            return cls(float(np.median(samples)), float(min(samples)), float(max(samples)))
        return None

    def disjoint_from(self, other: Spread) -> bool:
        """Return True if every run of the one lies on the same side of every run of the other."""
        return self.low > other.high or self.high < other.low


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One figure of a series. `statistic` is "p50", "p99"… of a latency, and empty for a plain figure."""

    name: str
    statistic: str
    unit: str
    definition: str
    values: tuple[float | None, ...]

    @property
    def spread(self) -> Spread | None:
        return Spread.of(self.values)

    @property
    def label(self) -> str:
        return f"{self.name} {self.statistic}".rstrip()

    @property
    def known(self) -> int:
        """The number of runs that gave a value."""
        return sum(value is not None for value in self.values)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "statistic": self.statistic or None, "unit": self.unit}


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of one configuration, in the order in which they were made; there is at least one."""

    name: str
    config: Config
    runs: tuple[Report, ...]

    def latency_rows(self, statistics: Iterable[str] = PERCENTILES) -> Iterator[MetricRow]:
        """One row for each latency and statistic."""
        names = tuple(statistics)
        for index, latency in enumerate(self.runs[0].latencies):
            summaries = [run.latencies[index].values for run in self.runs]
            for statistic in names:
                values = tuple(None if summary is None else getattr(summary, statistic) for summary in summaries)
                yield MetricRow(latency.name, statistic, "ms", latency.definition, values)

    def figure_rows(self) -> Iterator[MetricRow]:
        """One row for each figure."""
        for index, figure in enumerate(self.runs[0].figures):
            values = tuple(run.figures[index].value for run in self.runs)
            yield MetricRow(figure.name, "", figure.unit, figure.definition, values)

    def drop_rows(self) -> Iterator[MetricRow]:
        """One row for each queue and cause that dropped anything."""
        for name in sorted({name for run in self.runs for name in run.dropped}):
            values = tuple(float(run.dropped.get(name, 0)) for run in self.runs)
            yield MetricRow(f"dropped, {name}", "", "", "dropped, a run", values)

    def rows(self) -> Iterator[MetricRow]:
        yield from self.latency_rows()
        yield from self.figure_rows()
        yield from self.drop_rows()

    def middle_run(self) -> Report:
        """The run whose median frame latency is the median one: the one to draw."""
        by_latency = sorted(self.runs, key=_median_frame_latency)
        return by_latency[(len(by_latency) - 1) // 2]

    def as_json(self) -> dict[str, Any]:
        """The configuration, every run, and the summary over them."""
        return {
            "name": self.name,
            "config": config_json(self.config),
            "runs": [run.as_json() for run in self.runs],
            "summary": [{**row.as_json(), **_spread_json(row.spread)} for row in self.rows()],
        }


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """One figure of A beside the same figure of B; `ratio` is that of B's run to A's run of the same turn."""

    row: MetricRow
    a: Spread
    b: Spread
    ratio: Spread | None
    verdict: Verdict

    def as_json(self) -> dict[str, Any]:
        return {
            **self.row.as_json(),
            "a": _spread_json(self.a),
            "b": _spread_json(self.b),
            "ratio": _spread_json(self.ratio),
            "verdict": self.verdict,
        }


def differences(a: Series, b: Series) -> Iterator[MetricDifference]:
    """Every figure that both measured. Run n of A and run n of B were made one after the other."""
    rows_of_b = {(row.name, row.statistic): row for row in b.rows()}
    for row in a.rows():
        other = rows_of_b.get((row.name, row.statistic))
        if other is not None and row.spread is not None and other.spread is not None:
            pairs = zip(row.values, other.values, strict=False)
            ratio = Spread.of(of_b / of_a if of_a and of_b is not None else None for of_a, of_b in pairs)
            verdict: Verdict = "differs" if row.spread.disjoint_from(other.spread) else "noise"
            is_conclusive = min(row.known, other.known) >= ENOUGH_RUNS
            yield MetricDifference(row, row.spread, other.spread, ratio, verdict if is_conclusive else "too few runs")


def document(source: str, series: Sequence[Series], *, scheduled: bool) -> dict[str, Any]:
    """Everything that was measured: one series, or two that are compared."""
    first = series[0]
    rows = [row for variant in series for row in variant.rows()]
    return {
        "schema": SCHEMA,
        "benchmark": "bench",
        "source": source,
        "scheduled": scheduled,
        "machine": machine(),
        "definitions": {row.name: {"unit": row.unit, "definition": row.definition} for row in rows},
        "series": [variant.as_json() for variant in series],
        "comparison": [difference.as_json() for difference in differences(first, series[1])]
        if len(series) == 2
        else None,
    }


def _spread_json(spread: Spread | None) -> dict[str, float | None]:
    if spread is None:
        return {"median": None, "min": None, "max": None}
    return {"median": spread.median, "min": spread.low, "max": spread.high}


def _median_frame_latency(run: Report) -> float:
    values = run.latencies[0].values
    return 0.0 if values is None else values.p50
