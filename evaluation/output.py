"""Tables and curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arr_coc.errors import counted
from evaluation.errors import ResultsError
from evaluation.report import FULL, OURS, Cell

MARKERS = "osD^v<>PX"
"""One after the other for each curve, so that curves which lie on each other can be distinguished."""

SHARES = (5, 10, 27, 50, 100)
"""Numbers on the axis of tokens."""

PALETTES = ("tab10", "tab20")
"""Lists of colours, of which the first with enough for all curves is taken; more curves share out a scale."""

AXES = (
    ("visual tokens, % of all", lambda cell: 100 * cell["token_share"]),
    ("GFLOPs an answer", lambda cell: cell["flops"]["total"] / 1e9),
)


def check_plotting() -> None:
    """Raise ResultsError if matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ResultsError("--png needs matplotlib, which is not installed: pip install matplotlib") from error


def plot(cells: Sequence[Cell], title: str, path: Path) -> None:
    """Write a PNG. Raises ResultsError if it cannot be written."""
    from matplotlib.figure import Figure

    suites = list(dict.fromkeys(cell["suite"] for cell in cells))
    figure = Figure(figsize=(12, 1 + 3.8 * len(suites)), layout="constrained")
    figure.suptitle(title)
    rows = figure.subplots(len(suites), len(AXES), squeeze=False)
    styles = _styles(dict.fromkeys((cell["strategy"], cell["encode"]) for cell in cells))
    for axes, suite in zip(rows, suites, strict=True):
        _draw(axes, [cell for cell in cells if cell["suite"] == suite], suite, styles)
    labelled = {
        label: handle for axes in rows[:, 0] for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labelled.values(), labelled.keys(), loc="outside right center", frameon=False)
    try:
        figure.savefig(path, dpi=80, format="png")
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}; choose another --png") from error


def _styles(names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the colour and marker of each curve, the same in every suite; no colour twice."""
    from matplotlib import colormaps

    curves = list(names)
    palette = next((colormaps[name] for name in PALETTES if len(curves) <= colormaps[name].N), None)
    return {
        name: {
            "color": colormaps["turbo"](number / len(curves)) if palette is None else palette(number),
            "marker": "*" if name[0] == FULL else MARKERS[number % len(MARKERS)],
        }
        for number, name in enumerate(curves)
    }


def _draw(row: Sequence[Any], cells: Sequence[Cell], suite: str, styles: Mapping[tuple[str, str], Any]) -> None:
    from matplotlib.ticker import LogLocator

    names = dict.fromkeys((cell["strategy"], cell["encode"]) for cell in cells)
    for axes, (label, place) in zip(row, AXES, strict=True):
        for name in names:
            points = sorted((cell for cell in cells if (cell["strategy"], cell["encode"]) == name), key=place)
            _draw_curve(axes, points, place, name, styles[name])
        axes.set(xlabel=label, ylabel="right, %", xscale="log", ylim=(0, 102))
        axes.set_title(suite)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    row[0].set_xticks(SHARES, minor=False)


def _draw_curve(axes: Any, points: Sequence[Cell], place: Any, name: tuple[str, str], style: Mapping[str, Any]) -> None:
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
        **style,
        linewidth=2.5 if strategy == OURS else 1.2,
        markersize=12 if strategy == FULL else 5,
        zorder=3 if strategy == OURS else 2,
        elinewidth=0.6,
        capsize=2,
    )


def write(path: Path, content: str | bytes) -> None:
    """Write results. Raises ResultsError if they cannot be written."""
    try:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}; choose another --out") from error


HEADS = (
    "suite",
    "strategy",
    "encode",
    "budget",
    "right",
    "95 %",
    "tokens",
    "GFLOPs",
    "TTFT ms",
    "MB",
    "IoU",
    "ratio",
    "flips",
    "stale",
    "prefilled",
)

FEW = 10
"""Groups of more than these are in the results only."""

EFFECT_HEADS = ("with", "suite", "strategy", "encode", "budget", "points", "95 %", "covered", "other answers", "asked")


def table(cells: Sequence[Cell]) -> str:
    """One line a cell, columns aligned."""
    return align([HEADS, *(_row(cell) for cell in cells)])


def effects_table(effects: Sequence[Mapping[str, Any]]) -> str:
    """One line an effect; differences in points."""
    return align([EFFECT_HEADS, *(_effect_row(effect) for effect in effects)])


def benchmark_lines(report: Mapping[str, Any]) -> str:
    """A public benchmark's own figures: one line a cell, with its groups of up to ten."""
    lines = [f"{report['name']} {report['split']}: {report['metric']}"]
    for cell in report["cells"]:
        groups = [
            ", ".join(f"{name} {100 * figure:.1f}" for name, figure in of_tag.items())
            for of_tag in cell["groups"].values()
            if len(of_tag) <= FEW
        ]
        lines.append(
            "; ".join(
                [f"{cell['strategy']} ({cell['encode']}) {cell['budget']}: {100 * cell['figure']:.1f} %", *groups]
            )
        )
    if report["skipped"]:
        lines.append(f"without {counted(report['skipped'], 'question')} whose file is missing")
    return "\n".join(lines)


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)


def _row(cell: Cell) -> tuple[str, ...]:
    return (
        cell["suite"],
        cell["strategy"],
        cell["encode"],
        cell["budget"],
        f"{100 * cell['accuracy']:.1f} %",
        f"{100 * cell['low']:.1f}-{100 * cell['high']:.1f}",
        f"{cell['tokens']:.0f}",
        f"{cell['flops']['total'] / 1e9:.3f}",
        f"{cell['ttft_ms']:.1f}",
        f"{cell['peak_mb']:.0f}",
        _optional(cell["iou"]),
        _optional(cell["asked_over_distractor"]),
        _optional(cell["flips"]),
        _optional(cell["stale"]),
        _optional(cell["prefilled"], digits=0),
    )


def _effect_row(effect: Mapping[str, Any]) -> tuple[str, ...]:
    coverage = effect["covered"]
    return (
        effect["part"],
        effect["suite"],
        effect["strategy"],
        effect["encode"],
        effect["budget"],
        f"{100 * effect['difference']:+.1f}",
        f"{100 * effect['low']:+.1f} to {100 * effect['high']:+.1f}",
        "-" if coverage is None else f"{100 * coverage:+.1f}",
        f"{100 * effect['other_answers']:.0f} %",
        str(effect["count"]),
    )


def _optional(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
