"""Tables put into the text of a TOML file, and taken out of it: its other lines, with their comments, stay."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Table:
    """Lines of a table, from its header to its last value. Comments and blank lines below belong to what follows."""

    path: tuple[str, ...]
    begin: int
    end: int


def put_table(text: str, path: tuple[str, ...], table: str) -> str:
    """Return the text with `table`, the lines of one table, in the place of that of this path, or at its end.

    Comments inside a table that is replaced are lost.
    """
    lines = text.split("\n")
    present = next((one for one in _tables(lines) if one.path == path), None)
    if present is None:
        return append_table(text, table)
    lines[present.begin : present.end] = _lines_like(text, table)
    return "\n".join(lines)


def append_table(text: str, table: str) -> str:
    """Return the text with the lines of a table at its end, after a blank line."""
    lines = text.split("\n") if text else []
    while lines and not lines[-1].strip():
        lines.pop()
    blank = _lines_like(text, "") if lines else []
    return "\n".join([*lines, *blank, *_lines_like(text, table), ""])


def remove_tables(text: str, path: tuple[str, ...], numbers: set[int]) -> str:
    """Return the text without those of the tables `[[path]]` that have these numbers, from 0. Comments inside them are
    lost."""
    lines = text.split("\n")
    items = [table for table in _tables(lines) if table.path == path]
    for table in (items[number] for number in sorted(numbers, reverse=True) if number < len(items)):
        end = table.end
        while end < len(lines) - 1 and not lines[end].strip():
            end += 1
        del lines[table.begin : end]
    return "\n".join(lines)


def _lines_like(text: str, table: str) -> list[str]:
    """Return the lines of a table with the line ends of the text."""
    ending = "\r" if "\r\n" in text else ""
    return [line + ending for line in table.rstrip("\n").split("\n")]


def _tables(lines: list[str]) -> list[Table]:
    headers = [(number, path) for number, line in enumerate(lines) if (path := _header_path(line))]
    tables = []
    for place, (begin, path) in enumerate(headers):
        end = headers[place + 1][0] if place + 1 < len(headers) else len(lines)
        while end > begin + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1
        tables.append(Table(path, begin, end))
    return tables


def _header_path(line: str) -> tuple[str, ...]:
    """Return the path of a line that is the header of a table; empty for another line."""
    if not line.lstrip().startswith("["):
        return ()
    try:
        tree: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    while tree:
        if isinstance(tree, list):
            tree = tree[0]
        elif isinstance(tree, Mapping):
            ((name, tree),) = tree.items()
            path.append(name)
    return tuple(path)
