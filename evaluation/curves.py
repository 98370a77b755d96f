"""Accuracy against tokens and against FLOPs, as a picture: a row for each suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.compare import FULL, OURS
from evaluation.errors import ResultsError
from evaluation.report import Cell

MARKERS = "osD^v<>PX"
"""One after the other for each curve, so that curves which lie on each other can be told apart."""

SHARES = (5, 10, 27, 50, 100)
"""Where the axis of tokens has its numbers."""

AXES = (
    ("visual tokens, % of all", lambda cell: 100 * cell["token_share"]),
    ("GFLOPs an answer", lambda cell: cell["flops"]["total"] / 1e9),
)


def check_plotting() -> None:
    """Raises ResultsError where matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ResultsError("--png needs matplotlib, which is not installed: pip install matplotlib") from error


def plot(cells: Sequence[Cell], title: str, path: Path) -> None:
    """Writes a PNG. Raises ResultsError where it cannot be written."""
    from matplotlib.figure import Figure

    suites = list(dict.fromkeys(cell["suite"] for cell in cells))
    figure = Figure(figsize=(12, 1 + 3.8 * len(suites)), layout="constrained")
    figure.suptitle(title)
    rows = figure.subplots(len(suites), len(AXES), squeeze=False)
    for axes, suite in zip(rows, suites, strict=True):
        _draw(axes, [cell for cell in cells if cell["suite"] == suite], suite)
    figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    try:
        figure.savefig(path, dpi=80, format="png")
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}; choose another --png") from error


def _draw(row: Sequence[Any], cells: Sequence[Cell], suite: str) -> None:
    from matplotlib.ticker import LogLocator

    names = list(dict.fromkeys((cell["strategy"], cell["encode"]) for cell in cells))
    for axes, (label, place) in zip(row, AXES, strict=True):
        for number, name in enumerate(names):
            points = sorted((cell for cell in cells if (cell["strategy"], cell["encode"]) == name), key=place)
            _draw_curve(axes, points, place, name, MARKERS[number % len(MARKERS)])
        axes.set(xlabel=label, ylabel="right, %", xscale="log", ylim=(0, 102))
        axes.set_title(suite)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    row[0].set_xticks(SHARES, minor=False)


def _draw_curve(axes: Any, points: Sequence[Cell], place: Any, name: tuple[str, str], marker: str) -> None:
    strategy, encode = name
    right = [100 * cell["accuracy"] for cell in points]
    reach = [
        [100 * (cell["accuracy"] - cell["low"]) for cell in points],
        [100 * (cell["high"] - cell["accuracy"]) for cell in points],
    ]
    axes.errorbar(
        [place(cell) for cell in points],
        right,
        yerr=reach,
        label=f"{strategy} ({encode})",
        marker="*" if strategy == FULL else marker,
        linewidth=2.5 if strategy == OURS else 1.2,
        markersize=12 if strategy == FULL else 5,
        zorder=3 if strategy == OURS else 2,
        elinewidth=0.6,
        capsize=2,
    )
