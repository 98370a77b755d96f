"""Layout of the live view of several cameras: a pane for each, as high as there is room for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from arr_coc.errors import counted
from stream.clock import seconds_text
from stream.display.state import CameraSnapshot
from stream.display.text import SEPARATOR
from stream.extensions.live.cells import cut_text, wrap
from stream.extensions.live.layout import Row, figure_lines, state_text, transcript_rows
from stream.monitor.statistics import StatisticsSnapshot
from stream.untrusted import printable

FIGURES_SHARE = 3
"""One row in this many shows figures, if a pane has FIGURES_HEIGHT rows: answers come first."""

FIGURES_HEIGHT = 12

NOTES_SHOWN = 2
NOTE_ROWS_MAX = 3
NOTES_HEIGHT = 30
"""The newest notes have up to NOTE_ROWS_MAX rows on a terminal of this height or more; on a lower one the newest has
one."""


def compose_several(
    cameras: Sequence[CameraSnapshot], notes: Sequence[str], uptime_s: float, message: str, width: int, height: int
) -> list[Row]:
    """Return the view of several cameras without the last line, which is for input.

    The terminal cuts what is too wide.

    Args:
        cameras: State of each camera.
        notes: Lines about several cameras, the oldest first.
        uptime_s: Time since the start, in seconds.
        message: Text in place of the notes; empty for none.
        width: Width of the terminal, in cells.
        height: Number of rows returned.
    """
    if height >= 3:
        header = [_header(cameras, uptime_s, width)]
    else:
        header = []
    shown_notes = [message] if message else notes[-NOTES_SHOWN if height >= NOTES_HEIGHT else -1 :]
    lines = [line for note in shown_notes for line in wrap(printable(note), max(1, width - 2))][-NOTE_ROWS_MAX:]
    if height < NOTES_HEIGHT:
        lines = [cut_text(printable(note), max(1, width - 2)) for note in shown_notes if height >= 4]
    bottom: list[Row] = [[("class:note", f" {line}")] for line in lines]
    room = max(0, height - len(header) - len(bottom))
    rows = _panes(cameras, width, room)
    return [*header, *rows, *[[] for _ in range(room - len(rows))], *bottom]


def _panes(cameras: Sequence[CameraSnapshot], width: int, room: int) -> list[Row]:
    """Return the cameras in as many rows each as there is room for; the last row counts those that have none."""
    if not cameras or room <= 0:
        return []
    name_cells = min(16, max(cell_len(camera.name) for camera in cameras))  # longest part of a name that is shown
    if len(cameras) > room:
        visible_cameras = cameras[: room - 1]
        hidden_count = len(cameras) - len(visible_cameras)
        last: Row = [("class:dim", f" {counted(hidden_count, 'camera')} more; the terminal is too low for all of them")]
        return [*(_line(camera, name_cells, width) for camera in visible_cameras), last]
    if room // len(cameras) == 1:
        return [_line(camera, name_cells, width) for camera in cameras]
    questions = len(_questions(cameras)) > 1
    heights = zip(cameras, _heights(cameras, room), strict=True)
    return [row for camera, tall in heights for row in _pane(camera, name_cells, width, tall, question=questions)]


def _heights(cameras: Sequence[CameraSnapshot], room: int) -> list[int]:
    """Return the rows of each camera's pane: running cameras share the rows that the others do not need."""
    # rows of a camera that has no run: its name, and what it waits for or why it failed
    idle = min(3, room // len(cameras))
    running = [number for number, camera in enumerate(cameras) if camera.figures is not None]
    heights = [idle] * len(cameras)
    spare = room - idle * (len(cameras) - len(running))
    for at, number in enumerate(running):
        heights[number] = spare // len(running) + int(at < spare % len(running))
    return heights


def _line(camera: CameraSnapshot, name_cells: int, width: int) -> Row:
    """Return a camera in one row: name, rate, and the newest answer or its problem."""
    head = _name(camera, name_cells)
    if camera.state:
        style, text = state_text(camera)
        return [*head, (style, cut_text(text, width - name_cells - 3))]
    newest = camera.newest
    at, text = ("", "") if newest is None else (newest.at, newest.display_text)
    if camera.figures is None:
        rate = ""
    else:
        rate = f"{camera.figures.fps:5.1f} fps  "
    at = f"{at}  " if at else ""
    room = width - name_cells - 3 - cell_len(rate + at)
    return [*head, ("class:dim", rate), ("class:time", at), ("", cut_text(text, max(1, room)))]


def _pane(camera: CameraSnapshot, name_cells: int, width: int, tall: int, *, question: bool) -> list[Row]:
    """Return a camera in `tall` rows: its figures and, if asked for, its question, or its problem; below them the
    newest answers, and further figures if there is room."""
    indent = name_cells + 3
    room = max(1, width - indent - 1)
    if camera.state:
        style, text = state_text(camera)
        head, *lines = [(style, line) for line in wrap(text, room)[: max(1, tall - int(camera.newest is not None))]]
    else:
        if camera.figures is None:
            parts = []
        else:
            parts = _figures(camera.figures)
        text = SEPARATOR.join([*parts[:1], *([camera.query] if question and camera.query else []), *parts[1:]])
        head = ("class:dim", cut_text(text, room))
        lines = []
    if lines:
        rule = ""
    else:
        rule = f" {'─' * max(0, room - cell_len(head[1]))}"
    first: Row = [*_name(camera, name_cells), head, ("class:dim", rule)]
    rows: list[Row] = [first, *([("", " " * indent), line] for line in lines)]
    rest = tall - len(rows)
    figures: list[Row] = []
    if camera.figures is not None and rest >= FIGURES_HEIGHT:
        # figures that the head of a pane shows already
        figures = figure_lines(camera.figures, width, ("frames", "answers"))[: rest // FIGURES_SHARE]
    return [*rows, *transcript_rows(camera.entries, camera.partial, width, rest - len(figures)), *figures]


def _name(camera: CameraSnapshot, cells: int) -> Row:
    return [("class:title", f" {set_cell_size(camera.name, cells)}  ")]


def _figures(figures: StatisticsSnapshot) -> list[str]:
    parts = [f"{figures.fps:.1f} fps", counted(figures.answers, "answer")]
    if figures.ttft_ms is not None:
        parts.append(f"first token {figures.ttft_ms:.0f} ms")
    drops = sum(figures.dropped.values())
    return [*parts, f"{drops} dropped"] if drops else parts


def _questions(cameras: Sequence[CameraSnapshot]) -> set[str]:
    return {camera.query for camera in cameras if camera.query}


def _header(cameras: Sequence[CameraSnapshot], uptime_s: float, width: int) -> Row:
    """Return how many cameras run, their models, and the question, if all have the same."""
    problem_count = sum(camera.has_problem for camera in cameras)
    states = counted(len(cameras), "camera") + (f", {problem_count} not well" if problem_count else "")
    models = ", ".join(dict.fromkeys(camera.model for camera in cameras if camera.model))
    questions = _questions(cameras)
    question = questions.pop() if len(questions) == 1 else ""
    running = f"running {seconds_text(uptime_s)}"
    gap = width - cell_len(f" {states}  {models}  {question}") - cell_len(running) - 1
    row: Row = [("class:title", f" {states}"), ("class:dim", f"  {models}  "), ("class:title", question)]
    if gap > 0:
        return [*row, ("class:dim", f"{'':{gap}}{running}")]
    return row
