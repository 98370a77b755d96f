"""Limits of size: methods and attributes of a class, files on the path of a frame and of an answer."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
METHODS, ATTRIBUTES = 30, 20
ALLOCATE_IMPORTS = 27

FRAME_PATH_FILES, ANSWER_PATH_FILES = 80, 19
"""Project files that a frame and an answer may run through, one more than today: processors differ in their code.
They go down, to 50 and 10; the two sides of idle work, what is news in a tile, and the end of an answer that repeats
itself have added four."""


def classes() -> Iterator[ast.ClassDef]:
    for package in ("stream", "arr_coc"):
        for file in (ROOT / package).rglob("*.py"):
            yield from (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef))


def attributes(node: ast.ClassDef) -> set[str]:
    """Names that the methods of a class assign on `self`."""
    return {
        name.attr
        for name in ast.walk(node)
        if isinstance(name, ast.Attribute)
        and isinstance(name.ctx, ast.Store)
        and isinstance(name.value, ast.Name)
        and name.value.id == "self"
    }


def is_large(node: ast.ClassDef) -> bool:
    methods = sum(isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) for child in node.body)
    return methods > METHODS or len(attributes(node)) > ATTRIBUTES


def test_classes_are_small() -> None:
    assert [node.name for node in classes() if is_large(node)] == []


METHOD_LINES = [f"    def m{number}(self): ..." for number in range(METHODS + 1)]
ATTRIBUTE_LINES = ["    def m(self):", *(f"        self.a{number} = 0" for number in range(ATTRIBUTES + 1))]


@pytest.mark.parametrize("lines", [METHOD_LINES, ATTRIBUTE_LINES])
def test_large_classes_are_recognised(lines: list[str]) -> None:
    large, small = (ast.parse("\n".join(["class Some:", *part])).body[0] for part in (lines, lines[:-1]))
    assert isinstance(large, ast.ClassDef)
    assert isinstance(small, ast.ClassDef)
    assert is_large(large)
    assert not is_large(small)


def test_the_allocate_stage_imports_few_names() -> None:
    imports = ast.parse((ROOT / "stream/stages/allocate.py").read_text()).body
    names = sum(len(node.names) for node in imports if isinstance(node, ast.Import | ast.ImportFrom))
    assert names <= ALLOCATE_IMPORTS


def test_paths_are_short() -> None:
    process = subprocess.run(
        [sys.executable, "scripts/trace_path.py", "--list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    counts = [int(line.split(": ")[1].split(" files")[0]) for line in process.stdout.splitlines() if ": " in line]
    assert counts[0] <= FRAME_PATH_FILES, process.stdout
    assert counts[1] <= ANSWER_PATH_FILES, process.stdout
