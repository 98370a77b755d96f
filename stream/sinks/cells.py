"""Text in a terminal's cells: cut and wrapped. A character may take two cells, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rich.cells import cell_len

Span: TypeAlias = tuple[str, str]
"""A piece of text and the name of its style."""

Line: TypeAlias = Sequence[Span]


def cut(text: str, width: int) -> str:
    """The beginning of `text` in at most `width` cells; an ellipsis says that there was more."""
    if cell_len(text) <= width:
        return text
    if width <= 0:
        return ""
    return f"{_head(text, width - 1)}…"


def cut_start(text: str, width: int) -> str:
    """The end of `text` in at most `width` cells; an ellipsis says that there was more."""
    if cell_len(text) <= width:
        return text
    return f"…{tail(text, width - 1)}" if width > 0 else ""


def cut_path(path: str, width: int) -> str:
    """A path or an address in at most `width` cells: its end stays, from a whole folder on where one fits, and of an
    address its beginning too. `…/clips/a.mp4`, `rtsp://camera.l…/stream`."""
    if cell_len(path) <= width or width <= 1:
        return cut_start(path, width)
    scheme, mark, rest = path.partition("://")
    if mark:
        head = _head(path, min(cell_len(scheme) + len(mark) + 8, width // 2))
        return f"{head}…{tail(rest, width - cell_len(head) - 1)}"
    for at, char in enumerate(path):
        if char == "/" and 0 < at < len(path) - 1 and cell_len(path[at:]) <= width - 1:
            return f"…{path[at:]}"
    return cut_start(path, width)


def tail(text: str, width: int) -> str:
    """The end of `text` in at most `width` cells."""
    used = 0
    for at in range(len(text) - 1, -1, -1):
        used += cell_len(text[at])
        if used > width:
            return text[at + 1 :]
    return text


def cut_line(line: Line, width: int) -> list[Span]:
    """The beginning of a styled line in at most `width` cells."""
    kept: list[Span] = []
    for text, style in line:
        if width <= 0:
            break
        kept.append((cut(text, width), style))
        width -= cell_len(text)
    return kept


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken between words where that is possible; at least one line."""
    lines, line, used = [], "", 0
    for word in text.split(" "):
        cells = cell_len(word)
        if line and used + 1 + cells <= width:
            line, used = f"{line} {word}", used + 1 + cells
            continue
        if line:
            lines.append(line)
        while cells > width:
            head = _head(word, width) or word[:1]
            lines.append(head)
            word = word[len(head) :]
            cells = cell_len(word)
        line, used = word, cells
    return [*lines, line] if line or not lines else lines


def _head(text: str, width: int) -> str:
    used = 0
    for at, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:at]
    return text
