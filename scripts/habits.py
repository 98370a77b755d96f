"""Counts of three habits that make lines hard to read, each with a limit that only falls: `python -m scripts.habits`.

Tuple assignments of several values at once, conditional expressions, and private helpers that one place uses, for each
1,000 lines of the product. Lower a limit when its count has fallen.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("stream", "arr_coc")

LIMITS = {"tuple assignments": 0.7, "conditional expressions": 10.6, "private helpers used once": 10.0}
"""Most occurrences in 1,000 lines."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A habit at a line of a file."""

    habit: str
    file: Path
    line: int


def occurrences(file: Path, source: str) -> Iterator[Occurrence]:
    """Yield the habits in a source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            if any(isinstance(target, ast.Tuple) for target in node.targets):
                yield Occurrence("tuple assignments", file, node.lineno)
        elif isinstance(node, ast.IfExp):
            yield Occurrence("conditional expressions", file, node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_used_once(node.name, source):
            yield Occurrence("private helpers used once", file, node.lineno)


def _is_used_once(name: str, source: str) -> bool:
    # its definition is the other place
    return re.match(r"_[a-z]", name) is not None and len(re.findall(rf"\b{name}\b", source)) == 2


def rates() -> dict[str, float]:
    """Return the occurrences of each habit in 1,000 lines of the product."""
    counts, lines = dict.fromkeys(LIMITS, 0), 0
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            source = file.read_text("utf-8")
            lines += source.count("\n")
            for occurrence in occurrences(file, source):
                counts[occurrence.habit] += 1
    return {habit: 1000 * count / lines for habit, count in counts.items()}


def main() -> int:
    measured = rates()
    for habit, rate in measured.items():
        print(f"{habit}: {rate:.1f} in 1,000 lines, at most {LIMITS[habit]:g}")
    return int(any(rate > LIMITS[habit] for habit, rate in measured.items()))


if __name__ == "__main__":
    sys.exit(main())
