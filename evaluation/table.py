"""Cells as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.report import Cell

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
)


def table(cells: Sequence[Cell]) -> str:
    """One line a cell, columns aligned."""
    rows = [HEADS, *(_row(cell) for cell in cells)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
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
    )


def _optional(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
