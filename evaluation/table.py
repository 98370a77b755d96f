"""Cells and effects as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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

EFFECT_HEADS = ("with", "suite", "strategy", "encode", "budget", "points", "95 %", "covered", "other answers", "asked")


def table(cells: Sequence[Cell]) -> str:
    """One line a cell, columns aligned."""
    return _aligned([HEADS, *(_row(cell) for cell in cells)])


def effects_table(effects: Sequence[Mapping[str, Any]]) -> str:
    """One line an effect; differences in points."""
    return _aligned([EFFECT_HEADS, *(_effect_row(effect) for effect in effects)])


def _aligned(rows: Sequence[Sequence[str]]) -> str:
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
    )


def _effect_row(effect: Mapping[str, Any]) -> tuple[str, ...]:
    covered = effect["covered"]
    return (
        effect["part"],
        effect["suite"],
        effect["strategy"],
        effect["encode"],
        effect["budget"],
        f"{100 * effect['difference']:+.1f}",
        f"{100 * effect['low']:+.1f} to {100 * effect['high']:+.1f}",
        "-" if covered is None else f"{100 * covered:+.1f}",
        f"{100 * effect['other_answers']:.0f} %",
        str(effect["count"]),
    )


def _optional(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
