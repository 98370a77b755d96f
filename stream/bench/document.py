"""What `bench --json` writes. The keys are described in docs/measuring.md, and stay as long as `SCHEMA` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stream.bench.compare import differences
from stream.bench.machine import machine
from stream.bench.series import Series

SCHEMA = 2


def document(source: str, series: Sequence[Series], *, scheduled: bool) -> dict[str, Any]:
    """Everything that was measured: one series, or two that are compared."""
    first = series[0]
    rows = [row for one in series for row in one.rows()]
    return {
        "schema": SCHEMA,
        "benchmark": "bench",
        "source": source,
        "scheduled": scheduled,
        "machine": machine(),
        "definitions": {row.name: {"unit": row.unit, "definition": row.definition} for row in rows},
        "series": [one.as_json() for one in series],
        "comparison": [one.as_json() for one in differences(first, series[1])] if len(series) == 2 else None,
    }
