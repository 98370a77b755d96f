"""Layout of the live view: the rows above the input line, in a given width and height. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TypeAlias

from rich.cells import cell_len, set_cell_size

from arr_coc.errors import counted
from arr_coc.types import NS_PER_S
from stream.clock import duration_text, seconds_text
from stream.display.state import CameraSnapshot, TranscriptEntry
from stream.display.text import SEPARATOR, dropped_text
from stream.extensions.live.cells import cut_path, cut_text, wrap
from stream.media import SourceInfo
from stream.monitor.metrics import Percentiles
from stream.monitor.statistics import StatisticsSnapshot
from stream.untrusted import printable

Row: TypeAlias = list[tuple[str, str]]
"""Pieces of text, each after the name of its style, as prompt_toolkit takes them."""

LABEL_CELLS = 9
TIME_CELLS = 8


def compose(view: CameraSnapshot, message: str, width: int, height: int) -> list[Row]:
    """Return the view of a single camera whose run has begun, without the last line, which is for input.

    The terminal cuts rows that are too wide.

    Args:
        view: State of the camera.
        message: Text in place of the run's status; empty for none.
        width: Width of the terminal, in cells.
        height: Number of rows returned.
    """
    assert view.info is not None
    assert view.figures is not None
    header = _header(view, view.info, view.figures, width)[: 0 if height < 2 else 1 if height < 9 else 2]
    status = _status(view, message)
    if height > 2 and (status or height >= 13):
        bottom = [status]
    else:
        bottom = []
    rules = 0 if height < 7 else 1 if height < 13 else 2
    room = height - len(header) - len(bottom) - rules
    figures = figure_lines(view.figures, width)[: max(0, room - max(3, (height + 1) // 4))]
    text = transcript_rows(view.entries, view.partial, width, room - len(figures))
    rule: Row = [("class:dim", "─" * width)]
    return [*header, *[rule] * (rules > 1), *text, *[rule] * (rules > 0), *figures, *bottom]


def figure_lines(figures: StatisticsSnapshot, width: int, without: Sequence[str] = ()) -> list[Row]:
    """The figures in as many columns as fit; figures that do not fit into a row are left out from its end.

    `without`: names of rows that are left out.
    """
    rows = [row for row in figure_rows(figures) if row[0] not in without]
    columns = max(1, min(3, width // 64))  # the least width of a column, if there are several
    cells = [_figure_cell(label, items, width // columns) for label, items in rows]
    tall = -(-len(cells) // columns)
    stacks = [cells[at : at + tall] for at in range(0, len(cells), tall)]
    return [[piece for cell in row for piece in cell] for row in zip_longest(*stacks, fillvalue=[])]


def figure_rows(figures: StatisticsSnapshot) -> list[tuple[str, list[str]]]:
    """Each row's name and its figures, the most important first."""
    if figures.target_ms is None:
        target = []
    else:
        target = [("target", _target(figures))]
    if figures.checks_words is None:
        checks = []
    else:
        checks = [("shadow", _checks(figures.checks_words, figures))]
    return [
        ("frames", _frames(figures)),
        ("delay", _delay(figures.latency_ms)),
        ("answers", _answers(figures)),
        *target,
        *checks,
        ("late", _late(figures)),
        ("tokens", _tokens(figures)),
        ("dropped", [dropped_text(figures.dropped).removesuffix(" dropped")]),
        ("memory", _memory(figures)),
        ("so far", _so_far(figures)),
    ]


def _frames(figures: StatisticsSnapshot) -> list[str]:
    if not figures.frames:
        return []
    if figures.fps_run is None:
        run = []
    else:
        run = [f"{figures.fps_run:.1f} in all"]
    return [f"{figures.fps:.1f} a second", *run, counted(figures.frames, "frame")]


def _answers(figures: StatisticsSnapshot) -> list[str]:
    counts = [str(figures.answers), *([f"{figures.unchanged} unchanged"] if figures.unchanged else [])]
    if figures.ttft_ms is None or figures.total_ms is None:
        return counts
    return [*counts, f"first token {figures.ttft_ms:.0f} ms", f"last token {figures.total_ms:.0f} ms"]


def _target(figures: StatisticsSnapshot) -> list[str]:
    """The target for the first token, the present p95, and the budget."""
    if figures.ttft_p95_ms is None:
        now = []
    else:
        now = [f"first token p95 {figures.ttft_p95_ms:.0f} ms"]
    return [f"{figures.target_ms:.0f} ms", *now, f"budget {figures.budget}"]


def _checks(words: float, figures: StatisticsSnapshot) -> list[str]:
    agreement = f"{figures.checks_same} of {counted(figures.checks, 'check')} the same"
    moves = (
        f"budget {figures.budget}, {counted(figures.budget_raises, 'raise')}, {counted(figures.budget_lowers, 'fall')}"
    )
    return [agreement, f"{100 * words:.0f} % of words", *([moves] if figures.budget_raises else [])]


def _delay(latency: Percentiles | None) -> list[str]:
    if latency is None:
        return []
    return [f"{latency.p50:.1f} ms", f"p95 {latency.p95:.1f} ms", f"max {latency.max:.1f} ms"]


def _late(figures: StatisticsSnapshot) -> list[str]:
    if figures.jitter is None:
        return []
    return [f"{figures.jitter.deadline_misses_percent:.1f} % of frames", f"{figures.deadline_misses} in all"]


def _tokens(figures: StatisticsSnapshot) -> list[str]:
    if not figures.tiles:
        return []
    usage = f"{figures.tokens} of {figures.tiles} ({100 * figures.tokens / figures.tiles:.0f} %)"
    return [usage] + ([] if figures.dirty_share is None else [f"{100 * figures.dirty_share:.1f} % of tiles changed"])


def _memory(figures: StatisticsSnapshot) -> list[str]:
    total = sum(figures.memory_bytes.values())
    return [megabytes(total)] + [f"{name} {megabytes(size)}" for name, size in figures.memory_bytes.items()]


def _so_far(figures: StatisticsSnapshot) -> list[str]:
    if figures.outages_s:
        duration = f" ({duration_text(figures.outages_s)})"
    else:
        duration = ""
    return [
        counted(figures.cuts, "cut"),
        counted(figures.outages, "outage") + duration,
        counted(sum(figures.restarts.values()), "restart"),
    ]


def megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _header(view: CameraSnapshot, info: SourceInfo, figures: StatisticsSnapshot, width: int) -> list[Row]:
    if info.fps is None:
        fps = []
    else:
        fps = [f"{info.fps:.4g} fps"]
    details = SEPARATOR.join([f"{info.width_px}x{info.height_px}", *fps, printable(info.codec)])
    running = _running(info, figures)
    name = cut_path(printable(info.name), max(8, width - cell_len(details) - cell_len(running) - 8))
    gap = width - cell_len(name) - cell_len(details) - cell_len(running) - 4
    first = [("class:title", f" {name}"), ("", f"  {details}")]
    if gap > 0:
        first.append(("class:dim", f"{'':{gap}}{running}"))
    return [first, [("class:dim", f" {view.model}  "), ("class:title", view.query)]]


def _running(info: SourceInfo, figures: StatisticsSnapshot) -> str:
    """Of a file, its position and length; of a live source, how long the run has been going on."""
    if info.live:
        return f"running {seconds_text(figures.uptime_s)}"
    at = seconds_text(figures.media_s or 0.0)
    if info.duration_ns is None:
        return at
    return f"{at} / {seconds_text(info.duration_ns / NS_PER_S)}"


def _status(view: CameraSnapshot, message: str) -> Row:
    if message:
        return [("class:note", f" {message}")]
    if view.has_problem:
        return [state_text(view, indent=" ")]
    parts = [view.state] if view.state else []
    if view.pending:
        parts.append(f"asking: {view.pending}")
    if parts:
        return [("class:note", f" {SEPARATOR.join(parts)}")]
    return []


def state_text(view: CameraSnapshot, indent: str = "") -> tuple[str, str]:
    """Return the state of a camera, after the name of its style."""
    return "class:alarm" if view.has_problem else "class:note", f"{indent}{printable(view.state)}"


def transcript_rows(
    entries: Sequence[TranscriptEntry], partial: TranscriptEntry | None, width: int, height: int
) -> list[Row]:
    """Return the newest lines that fit; if there are fewer, empty ones below them.

    Args:
        entries: Finished entries, the oldest first.
        partial: Entry that is still being generated.
        width: Width of the rows, in cells.
        height: Number of rows returned.
    """
    rows: list[Row] = []
    for entry in reversed([*entries, *([] if partial is None else [partial])]):
        if len(rows) >= height:
            break
        rows = [*_entry_rows(entry, width, height - len(rows), partial=entry is partial), *rows]
    return [*rows, *[[] for _ in range(height - len(rows))]]


def _entry_rows(entry: TranscriptEntry, width: int, height: int, *, partial: bool) -> list[Row]:
    """Return an entry in at most `height` rows: a finished one from its beginning on, one that is still being generated
    to its end."""
    indent = TIME_CELLS + 3 if width >= 40 else 1
    if entry.is_message:
        style = "class:note"
    else:
        style = "class:partial" if partial else ""
    if width >= 40:
        at = f" {entry.at:>{TIME_CELLS}}  "
    else:
        at = " "
    room = max(1, width - indent - 1)
    lines = wrap(entry.display_text, room)
    if len(lines) > height and partial:
        lines = wrap(f"… {' '.join(lines[-height:])}", room)[-height:]
    elif len(lines) > height:
        lines = [*lines[: height - 1], cut_text(" ".join(lines[height - 1 :]), room)]
    return [[("class:time", " " * indent if number else at), (style, text)] for number, text in enumerate(lines)]


def _figure_cell(label: str, items: Sequence[str], width: int) -> Row:
    """Label and figures in exactly `width` cells."""
    text = ""
    for item in items:
        longer = f"{text}{SEPARATOR}{item}" if text else item
        if cell_len(longer) > width - LABEL_CELLS - 2:
            break
        text = longer
    label = f" {label:<{LABEL_CELLS}}"
    return [("class:label", label), ("", set_cell_size(text or "–", max(0, width - cell_len(label))))]
