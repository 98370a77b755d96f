"""Report of the checks of a GPU: one JSON file, and lines of 80 columns; neither names user, host or folders."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.cells import cell_len, set_cell_size

from arr_coc.errors import counted
from arr_coc.resources import CHECKOUT
from stream.extensions.doctor.gpu.checks import GpuState
from stream.extensions.doctor.gpu.runner import GpuRow
from stream.monitor.machine import machine, package_version
from stream.untrusted import printable

COLUMNS = 80
NAME_COLUMNS = 17
STATES: tuple[GpuState, ...] = ("works", "slow", "broken", "absent")

PACKAGES = ("cuda-bindings", "PyOpenGL", "triton", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cudnn-cu12")

VARIABLES = (
    "ARR_COC_KERNEL",
    "ARR_COC_NVCC",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "PYOPENGL_PLATFORM",
    "PYTORCH_CUDA_ALLOC_CONF",
)
"""Environment variables that change what runs on the GPU."""


class GpuReport:
    """Rows so far, and the machine. `ended` is "running", "finished" or "interrupted"."""

    def __init__(self) -> None:
        self.rows: list[GpuRow] = []
        self.ended = "running"
        self._environment = {
            **machine(),
            **{name: installed for name in PACKAGES if (installed := package_version(name)) is not None},
            "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
            "nvidia_kernel_module": _kernel_module(),
            "cuda_devices_visible": sorted(path.name for path in Path("/dev").glob("nvidia*")),
        }

    def add(self, row: GpuRow) -> GpuRow:
        """Add a row, and return it without private names."""
        clean = GpuRow(**_cleaned(asdict(row)))
        self.rows.append(clean)
        return clean

    @property
    def counts(self) -> dict[GpuState, int]:
        """Number of rows in each state."""
        counter = Counter(row.state for row in self.rows)
        return {state: counter[state] for state in STATES}

    def as_json(self) -> str:
        """Return the whole report as the file has it."""
        environment = dict(self._environment)
        for row in self.rows:
            if row.facts:
                environment[row.name] = row.facts
        report = {
            "report": "gpu",
            "ended": self.ended,
            "counts": self.counts,
            "environment": _cleaned(environment),
            "rows": [
                {name: value for name, value in asdict(row).items() if value or name == "seconds"} for row in self.rows
            ],
        }
        return json.dumps(report, indent=2, ensure_ascii=False) + "\n"


def row_text(row: GpuRow) -> str:
    """Return a row in lines of at most 80 columns: one, which is cut, or for a measurement as many as it needs."""
    finding = printable(f"(software) {row.finding}" if row.software else row.finding)
    line = f"{row.state:<7} {row.name:<{NAME_COLUMNS}} {finding}"
    if not row.figures:
        return _cut(line)
    return fill(line, COLUMNS, subsequent_indent=" " * (8 + NAME_COLUMNS + 1), break_on_hyphens=False)


def left_out_lines(rows: list[GpuRow]) -> Iterator[str]:
    """Yield a line for the rows that were left out for want of the same check."""
    reasons: dict[str, list[GpuRow]] = {}
    for row in rows:
        if row.needed is not None:
            reasons.setdefault(row.finding, []).append(row)
    for reason, group in reasons.items():
        yield _cut(f"absent  {counted(len(group), 'check'):<{NAME_COLUMNS}} left out: {reason}")


def summary_line(report: GpuReport, path: str) -> str:
    """Return the last line: how many rows are in each state, and the file to attach."""
    counts = ", ".join(f"{count} {state}" for state, count in report.counts.items() if count)
    return f"{counts}; attach {path} to a report"


def _cut(line: str) -> str:
    if cell_len(line) <= COLUMNS:
        return line
    return set_cell_size(line, COLUMNS - 1).rstrip() + "…"


def _kernel_module() -> str | None:
    """Return the version of NVIDIA's kernel module; None without one."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"\d+\.\d+(\.\d+)?", first)
    return match[0] if match else None


def _cleaned(value: Any) -> Any:
    """Return a value of JSON whose texts name neither the user, the host nor folders of this machine."""
    if isinstance(value, str):
        for pattern, name in _private():
            value = pattern.sub(name, value)
        return value
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(item) for item in value]
    return value


@cache
def _private() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Patterns of private texts, the longest paths first, and what stands for them."""
    paths = {
        os.getcwd(): "<folder>",
        str(CHECKOUT): "<program>",
        sys.prefix: "<python>",
        sys.base_prefix: "<base-python>",
        os.path.realpath(sys.base_prefix): "<base-python>",
        os.path.expanduser("~"): "~",
        os.environ.get("XDG_CACHE_HOME", ""): "<cache>",
        os.environ.get("TMPDIR", ""): "<temporary>",
    }
    longest = sorted((path for path in paths if len(path.strip("/")) > 1), key=len, reverse=True)
    patterns = [(re.compile(re.escape(path.rstrip("/")) + r"(?![\w.-])"), paths[path]) for path in longest]
    patterns.append((re.compile(r"/(?:home|Users)/[^/\s\"':]+|/root(?=/)"), "~"))
    host = socket.gethostname()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    names = {host: "<host>", host.partition(".")[0]: "<host>", user: "<user>"}
    common = {"", "localhost", "root", "user"}
    patterns += [
        (re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])"), mark)
        for name, mark in names.items()
        if name not in common and len(name) > 2
    ]
    return tuple(patterns)
