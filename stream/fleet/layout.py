"""Layout of the live view of several cameras: a pane for each, as high as there is room for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from arr_coc.errors import counted
from stream.clock import duration_text, seconds_text
from stream.display.layout import SEPARATOR, Row
from stream.display.state import TranscriptEntry
from stream.display.text import wrap
from stream.monitor.statistics import StatisticsSnapshot
from stream.untrusted import printable

PANE_ROWS_MAX = 5
"""A pane has at most so many rows: its head, and the newest answer."""

NAME_CELLS = 16
"""Longest part of a name that is shown."""


@dataclass(frozen=True, slots=True)
class CameraSnapshot:
    """A camera at one moment.

    `state` says what it waits for or how it ended, "" while it runs; `ill`: that is a failure. `newest` is its last
    answer, and `partial` the one that is being generated. `question` is the one in force, None where it has no run.
    """

    name: str
    state: str
    ill: bool = False
    figures: StatisticsSnapshot | None = None
    newest: TranscriptEntry | None = None
    partial: TranscriptEntry | None = None
    question: str | None = None


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """All that the view shows, at one moment. `notes` are lines about several cameras, the newest last."""

    model: str
    uptime_s: float
    cameras: Sequence[CameraSnapshot]
    notes: Sequence[str] = ()


def compose_fleet(view: FleetSnapshot, message: str, width: int, height: int) -> list[Row]:
    """Return the whole view but its last line, which is for input: `height` rows. The terminal cuts what is too wide.

    Without a `message` the newest note has its place.
    """
    header = [_header(view, width)] if height >= 3 else []
    note = message or (view.notes[-1] if view.notes else "")
    bottom: list[Row] = [[("class:note", f" {printable(note)}")]] if note and height >= 4 else []
    room = max(0, height - len(header) - len(bottom))
    rows = _panes(view.cameras, width, room)
    return [*header, *rows, *[[] for _ in range(room - len(rows))], *bottom]


def _panes(cameras: Sequence[CameraSnapshot], width: int, room: int) -> list[Row]:
    """Return the cameras in as many rows each as there is room for; the last row counts those that have none."""
    if not cameras or room <= 0:
        return []
    name_cells = min(NAME_CELLS, max(cell_len(camera.name) for camera in cameras))
    if len(cameras) > room:
        shown = cameras[: room - 1]
        more = len(cameras) - len(shown)
        last: Row = [("class:dim", f" {counted(more, 'camera')} more; the terminal is too low for all of them")]
        return [*(_line(camera, name_cells) for camera in shown), last]
    tall = min(PANE_ROWS_MAX, room // len(cameras))
    if tall == 1:
        return [_line(camera, name_cells) for camera in cameras]
    questions = len(_questions(cameras)) > 1
    return [row for camera in cameras for row in _pane(camera, name_cells, width, tall, question=questions)]


def _line(camera: CameraSnapshot, name_cells: int) -> Row:
    """Return a camera in one row: name, rate, and the newest answer or what is wrong."""
    head = _name(camera, name_cells)
    if camera.state:
        return [*head, _state(camera)]
    at, text = _said(camera)
    rate = "" if camera.figures is None else f"{camera.figures.fps:5.1f} fps  "
    return [*head, ("class:dim", rate), ("class:time", f"{at}  " if at else ""), ("", text)]


def _pane(camera: CameraSnapshot, name_cells: int, width: int, tall: int, *, question: bool) -> list[Row]:
    """Return a camera in `tall` rows: its figures and, if asked for, its question; below them the newest answer, or
    what is wrong."""
    indent = name_cells + 3
    room = max(1, width - indent - 1)
    style, text = _state(camera)
    if camera.state:
        head, *lines = [(style, line) for line in wrap(text, room)[: tall - int(bool(_said(camera)[1]))]]
    else:
        parts = [] if camera.figures is None else _figures(camera.figures)
        head = ("class:dim", SEPARATOR.join([*parts, *([camera.question] if question and camera.question else [])]))
        lines = []
    at, said = _said(camera)
    said_style = "class:partial" if camera.partial is not None else ""
    if said:
        lines += [(said_style, line) for line in wrap(f"{at}  {said}" if at else said, room)]
    rows: list[Row] = [[*_name(camera, name_cells), head], *([("", " " * indent), line] for line in lines)]
    return [*rows[:tall], *[[] for _ in range(tall - len(rows))]]


def _name(camera: CameraSnapshot, cells: int) -> Row:
    return [("class:title", f" {set_cell_size(camera.name, cells)}  ")]


def _state(camera: CameraSnapshot) -> tuple[str, str]:
    return "class:alarm" if camera.ill else "class:note", printable(camera.state)


def _said(camera: CameraSnapshot) -> tuple[str, str]:
    entry = camera.partial or camera.newest
    return ("", "") if entry is None else (entry.at, entry.display_text)


def _figures(figures: StatisticsSnapshot) -> list[str]:
    parts = [f"{figures.fps:.1f} fps", counted(figures.answers, "answer")]
    if figures.ttft_ms is not None:
        parts.append(f"first token {figures.ttft_ms:.0f} ms")
    if figures.outage is not None:
        parts.append(f"lost for {duration_text(figures.outage.lasted_s)}")
    dropped = sum(figures.dropped.values())
    return [*parts, f"{dropped} dropped"] if dropped else parts


def _questions(cameras: Sequence[CameraSnapshot]) -> set[str]:
    return {camera.question for camera in cameras if camera.question is not None}


def _header(view: FleetSnapshot, width: int) -> Row:
    """Return how many cameras run, the model, and the question, where all have the same."""
    ill = sum(camera.ill for camera in view.cameras)
    states = counted(len(view.cameras), "camera") + (f", {ill} not well" if ill else "")
    questions = _questions(view.cameras)
    question = questions.pop() if len(questions) == 1 else ""
    running = f"running {seconds_text(view.uptime_s)}"
    left = f" {states}  {view.model}  {question}"
    gap = width - cell_len(left) - cell_len(running) - 1
    row: Row = [("class:title", f" {states}"), ("class:dim", f"  {view.model}  "), ("class:title", question)]
    return [*row, ("class:dim", f"{'':{gap}}{running}")] if gap > 0 else row
