"""Figures of a list of times, memory of a process, and the JSON report of a benchmark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def percentiles(values: Sequence[float], digits: int | None = None) -> dict[str, float]:
    """Return the median, the 95th and the 99th percentile, and the largest value, rounded to `digits` if given."""
    p50, p95, p99 = np.percentile(values, (50, 95, 99)).tolist()
    figures = {"p50": p50, "p95": p95, "p99": p99, "max": max(values)}
    return figures if digits is None else {name: round(value, digits) for name, value in figures.items()}


def resident_mib(process: int | str, field: str = "VmHWM") -> float:
    """Return a process's largest resident size so far, or another `field` of its status, by proc(5)."""
    lines = Path(f"/proc/{process}/status").read_text("ascii", errors="replace").splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def write_report(path: Path, report: Any) -> None:
    """Write a report as JSON."""
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
