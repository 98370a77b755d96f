"""Lays a live view out in the rows and columns that there are. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len

from arr_coc.errors import counted
from arr_coc.types import NS_PER_S
from stream.clock import seconds_text
from stream.display.state import Scene, TranscriptEntry
from stream.display.text import Line, Span, cut_line, cut_path, tail, wrap
from stream.monitor.statistics import StatisticsSnapshot
from stream.untrusted import printable

HINT = "type a question and press Enter · Ctrl-C ends"
HINT_NO_KEYS = "Ctrl-C ends"

COLUMN_CELLS = 64
"""A column of figures is at least so wide, where there are several."""

LABEL_CELLS = 9
TIME_CELLS = 8
SEPARATOR = " · "


@dataclass(frozen=True, slots=True)
class Typing:
    """The line that is being typed, None where nothing can be.

    `remark` is what was last said to whoever types, `pending` a question that was typed and is not taken yet.
    """

    text: str | None
    remark: str = ""
    pending: str = ""


def compose(scene: Scene, typing: Typing, width: int, height: int) -> list[Line]:
    """The whole screen: exactly `height` lines, none wider than `width` cells."""
    header = _header(scene, width)[: 0 if height < 3 else 1 if height < 10 else 2]
    status = _status(scene, typing)
    bottom: list[Line] = ([status] if height > 3 and (status or height >= 14) else []) + [input_line(typing, width)]
    rules = 0 if height < 8 else 1 if height < 14 else 2
    room = height - len(header) - len(bottom) - rules
    figures = figure_lines(scene.figures, width)[: max(0, room - max(3, height // 4))]
    text = _transcript(scene, width, room - len(figures))
    rule: Line = [("─" * width, "dim")]
    lines = [*header, *[rule] * (rules > 1), *text, *[rule] * (rules > 0), *figures, *bottom]
    return [cut_line(line, width) for line in lines]


def figure_lines(figures: StatisticsSnapshot, width: int) -> list[Line]:
    """The figures in as many columns as fit; what does not fit into a row is left out from its end."""
    rows = figure_rows(figures)
    columns = max(1, min(3, width // COLUMN_CELLS))
    column_width = width // columns
    cells = [_figure_cell(label, items, column_width - 1) for label, items in rows]
    tall = -(-len(cells) // columns)
    lines: list[Line] = []
    for row in zip_longest(*(cells[at : at + tall] for at in range(0, len(cells), tall)), fillvalue=[]):
        lines.append([span for cell in row for span in _padded(cell, column_width)])
    return lines


def figure_rows(figures: StatisticsSnapshot) -> list[tuple[str, list[str]]]:
    """Each row's name and its figures, the most telling first."""
    latency = figures.latency_ms
    target = [] if figures.target_ms is None else [("target", _target(figures))]
    checks = [] if figures.checks_words is None else [("shadow", _checks(figures.checks_words, figures))]
    return [
        ("frames", _frames(figures)),
        ("latency", [] if latency is None else _milliseconds(p50=latency.p50, p95=latency.p95, max=latency.max)),
        ("answers", _answers(figures)),
        *target,
        *checks,
        ("jitter", _jitter(figures)),
        ("tokens", _tokens(figures)),
        ("dropped", _dropped(figures)),
        ("memory", _memory(figures)),
        ("so far", _so_far(figures)),
    ]


def _frames(figures: StatisticsSnapshot) -> list[str]:
    if not figures.frames:
        return []
    run = [] if figures.fps_run is None else [f"{figures.fps_run:.1f} in all"]
    return [f"{figures.fps:.1f} a second", *run, counted(figures.frames, "frame")]


def _answers(figures: StatisticsSnapshot) -> list[str]:
    if figures.ttft_ms is None or figures.total_ms is None:
        return [str(figures.answers)]
    return [str(figures.answers), f"first token {figures.ttft_ms:.0f} ms", f"last token {figures.total_ms:.0f} ms"]


def _target(figures: StatisticsSnapshot) -> list[str]:
    """What of the first token is held, and how far it is from that."""
    now = [] if figures.ttft_p95_ms is None else [f"first token p95 {figures.ttft_p95_ms:.0f} ms"]
    return [f"{figures.target_ms:.0f} ms", *now, f"budget {figures.budget}"]


def _checks(words: float, figures: StatisticsSnapshot) -> list[str]:
    same = f"{figures.checks_same} of {counted(figures.checks, 'check')} the same"
    return [same, f"{100 * words:.0f} % of words"]


def _jitter(figures: StatisticsSnapshot) -> list[str]:
    jitter = figures.jitter
    if jitter is None:
        return []
    late = f"late {jitter.deadline_misses_percent:.1f} % ({figures.deadline_misses} in all)"
    return [f"interval_std {jitter.interval_std_ms:.2f} ms", late, f"interarrival {jitter.interarrival_ms:.2f} ms"]


def _tokens(figures: StatisticsSnapshot) -> list[str]:
    if not figures.tiles:
        return []
    used = f"{figures.tokens} of {figures.tiles} ({100 * figures.tokens / figures.tiles:.0f} %)"
    return [used] + ([] if figures.dirty_share is None else [f"{100 * figures.dirty_share:.1f} % of tiles changed"])


def _dropped(figures: StatisticsSnapshot) -> list[str]:
    if not figures.dropped:
        return ["nothing"]
    return [str(sum(figures.dropped.values())), *(f"{queue} {count}" for queue, count in figures.dropped.items())]


def _memory(figures: StatisticsSnapshot) -> list[str]:
    total = sum(figures.memory_bytes.values())
    return [megabytes(total)] + [f"{name} {megabytes(size)}" for name, size in figures.memory_bytes.items()]


def _so_far(figures: StatisticsSnapshot) -> list[str]:
    lasted = f" ({duration(figures.outages_s)})" if figures.outages_s else ""
    return [
        counted(figures.cuts, "cut"),
        counted(figures.outages, "outage") + lasted,
        counted(sum(figures.restarts.values()), "restart"),
    ]


def duration(seconds: float) -> str:
    """How long something lasts, for people: `9.5 s`, `0:59`, `1:02:03`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _milliseconds(**values: float) -> list[str]:
    return [f"{name} {value:.1f} ms" for name, value in values.items()]


def _header(scene: Scene, width: int) -> list[Line]:
    info = scene.info
    fps = [] if info.fps is None else [f"{info.fps:.4g} fps"]
    details = SEPARATOR.join([f"{info.width_px}x{info.height_px}", *fps, printable(info.codec)])
    running = _running(scene)
    name = cut_path(printable(info.name), max(8, width - cell_len(details) - cell_len(running) - 8))
    first = [(f" {name}", "title"), (f"  {details}", "")]
    gap = width - sum(cell_len(text) for text, _ in first) - cell_len(running) - 1
    if gap > 0:
        first += [(" " * gap, ""), (running, "dim")]
    return [first, [(f" {scene.model}", "dim"), ("  ", ""), (scene.query, "question")]]


def _running(scene: Scene) -> str:
    """Of a file, where it is and how long it is; of a live source, how long the run has been going on."""
    info, figures = scene.info, scene.figures
    if info.live:
        return f"running {seconds_text(figures.uptime_s)}"
    at = seconds_text(figures.media_s or 0.0)
    return at if info.duration_ns is None else f"{at} / {seconds_text(info.duration_ns / NS_PER_S)}"


def _status(scene: Scene, typing: Typing) -> list[Span]:
    outage = scene.figures.outage
    if typing.remark:
        return [(f" {typing.remark}", "note")]
    if outage is not None:
        return [(f" source lost, {duration(outage.lasted_s)} by now: {printable(outage.reason)}", "alarm")]
    said = [scene.waiting] if scene.waiting else []
    if typing.pending:
        said.append(f"asking: {typing.pending}")
    return [(f" {SEPARATOR.join(said)}", "note")] if said else []


def input_line(typing: Typing, width: int) -> Line:
    if typing.text is None:
        return [(f" {HINT_NO_KEYS}", "dim")]
    if not typing.text:
        return [(" › ", "time"), (HINT[0], "cursor"), (HINT[1:], "dim")]
    return [(" › ", "time"), (tail(typing.text, width - 5), ""), (" ", "cursor")]


def _transcript(scene: Scene, width: int, height: int) -> list[Line]:
    """The newest lines that fit, at the bottom."""
    lines: list[Line] = []
    told = [*scene.entries, *([] if scene.spoken is None else [scene.spoken])]
    for entry in reversed(told):
        if len(lines) >= height:
            break
        lines = [*_entry_lines(entry, width, spoken=entry is scene.spoken), *lines]
    lines = lines[-height:] if height > 0 else []
    return [*lines, *[[] for _ in range(height - len(lines))]]


def _entry_lines(entry: TranscriptEntry, width: int, *, spoken: bool) -> list[Line]:
    indent = TIME_CELLS + 3 if width >= 40 else 1
    style = "note" if entry.remark else "spoken" if spoken else ""
    at = entry.at if width >= 40 else ""
    lines: list[Line] = []
    for number, text in enumerate(wrap(entry.shown, max(1, width - indent - 1))):
        start = f" {at:>{TIME_CELLS}}  " if at and not number else " " * indent
        lines.append([(start, "time"), (text, style)])
    return lines


def _figure_cell(label: str, items: Sequence[str], width: int) -> list[Span]:
    """Label and figures in at most `width` cells."""
    text = ""
    for item in items:
        longer = f"{text}{SEPARATOR}{item}" if text else item
        if cell_len(longer) > width - LABEL_CELLS - 1:
            break
        text = longer
    return cut_line([(f" {label:<{LABEL_CELLS}}", "label"), (text or "–", "")], width)


def _padded(line: Sequence[Span], width: int) -> list[Span]:
    used = sum(cell_len(text) for text, _ in line)
    return [*line, (" " * (width - used), "")]
