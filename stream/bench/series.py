"""Several runs of one configuration: of each figure the median, and how far the runs lay apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream.bench.report import PERCENTILES, Report, config_json
from stream.config import Config


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over several runs."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None where no run gave a value."""
        known = [value for value in values if value is not None]
        return cls(float(np.median(known)), float(min(known)), float(max(known))) if known else None

    def apart_from(self, other: Spread) -> bool:
        """Every run of the one lies on the same side of every run of the other."""
        return self.low > other.high or self.high < other.low


@dataclass(frozen=True, slots=True)
class Row:
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


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of one configuration, in the order in which they were made; there is at least one."""

    name: str
    config: Config
    runs: tuple[Report, ...]

    def latency_rows(self, statistics: Iterable[str] = PERCENTILES) -> Iterator[Row]:
        """One row for each latency and statistic."""
        wanted = tuple(statistics)
        for index, latency in enumerate(self.runs[0].latencies):
            each = [run.latencies[index].values for run in self.runs]
            for statistic in wanted:
                values = tuple(None if one is None else getattr(one, statistic) for one in each)
                yield Row(latency.name, statistic, "ms", latency.definition, values)

    def figure_rows(self) -> Iterator[Row]:
        """One row for each figure."""
        for index, figure in enumerate(self.runs[0].figures):
            values = tuple(run.figures[index].value for run in self.runs)
            yield Row(figure.name, "", figure.unit, figure.definition, values)

    def drop_rows(self) -> Iterator[Row]:
        """One row for each queue and cause that dropped anything."""
        for name in sorted({name for run in self.runs for name in run.dropped}):
            values = tuple(float(run.dropped.get(name, 0)) for run in self.runs)
            yield Row(f"dropped, {name}", "", "", "dropped, a run", values)

    def rows(self) -> Iterator[Row]:
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
            "summary": [
                {"name": row.name, "statistic": row.statistic or None, "unit": row.unit, **spread_json(row.spread)}
                for row in self.rows()
            ],
        }


def spread_json(spread: Spread | None) -> dict[str, float | None]:
    if spread is None:
        return {"median": None, "min": None, "max": None}
    return {"median": spread.median, "min": spread.low, "max": spread.high}


def _median_frame_latency(run: Report) -> float:
    values = run.latencies[0].values
    return 0.0 if values is None else values.p50
