"""Two configurations, measured by turns: what differs between them, and what is only noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from stream.bench.series import Row, Series, Spread, spread_json

ENOUGH_RUNS = 5
"""Runs of each that it takes to tell a difference from noise. Where nothing differs, all five of one lie beyond all
five of the other once in 126 times; with three of each, once in ten."""

Verdict = Literal["differs", "noise", "too few runs"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of A beside the same figure of B; `ratio` is that of B's run to A's run of the same turn."""

    row: Row
    a: Spread
    b: Spread
    ratio: Spread | None
    verdict: Verdict

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.row.name,
            "statistic": self.row.statistic or None,
            "unit": self.row.unit,
            "a": spread_json(self.a),
            "b": spread_json(self.b),
            "ratio": spread_json(self.ratio),
            "verdict": self.verdict,
        }


def differences(a: Series, b: Series) -> Iterator[Difference]:
    """Every figure that both measured. Run n of A and run n of B were made one after the other."""
    of_b = {(row.name, row.statistic): row for row in b.rows()}
    for row in a.rows():
        other = of_b.get((row.name, row.statistic))
        if other is None or row.spread is None or other.spread is None:
            continue
        yield Difference(row, row.spread, other.spread, _ratio(row, other), _verdict(row, other))


def _ratio(a: Row, b: Row) -> Spread | None:
    pairs = zip(a.values, b.values, strict=False)
    return Spread.of(of_b / of_a if of_a and of_b is not None else None for of_a, of_b in pairs)


def _verdict(a: Row, b: Row) -> Verdict:
    assert a.spread is not None
    assert b.spread is not None
    if min(_known(a), _known(b)) < ENOUGH_RUNS:
        return "too few runs"
    return "differs" if a.spread.apart_from(b.spread) else "noise"


def _known(row: Row) -> int:
    return sum(value is not None for value in row.values)
