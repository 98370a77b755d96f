"""Text cut and wrapped to the cells of a terminal."""

from __future__ import annotations

from rich.cells import cell_len, chop_cells, set_cell_size


def cut_path(path: str, width: int) -> str:
    """A path or an address in at most `width` cells: its end stays, from a whole folder on if one fits, and of an
    address its beginning too. `…/clips/a.mp4`, `rtsp://camera.l…/stream`."""
    if cell_len(path) <= width:
        return path
    scheme, mark, rest = path.partition("://")
    if mark:
        head = set_cell_size(path, min(cell_len(scheme) + len(mark) + 8, width // 2))
        return head + _cut_start(rest, width - cell_len(head))
    for at, char in enumerate(path[:-1]):
        if at and char == "/" and cell_len(path[at:]) < width:
            return f"…{path[at:]}"
    return _cut_start(path, width)


def _cut_start(text: str, width: int) -> str:
    while text and cell_len(text) >= width:
        text = text[1:]
    return f"…{text}" if width > 0 else ""


def cut_text(text: str, width: int) -> str:
    """A text in at most `width` cells; one that is cut ends in an ellipsis."""
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, max(0, width - 1)).rstrip()}…"


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken between words if possible; at least one line."""
    lines = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if cell_len(longer) > width:
            lines += [line] if line else []
            *pieces, longer = chop_cells(word, width) or [""]
            lines += filter(None, pieces)
        line = longer
    return [*lines, line] if line or not lines else lines
