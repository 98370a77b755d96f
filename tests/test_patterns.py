"""Patterns that check input end at its end: Python's `$` also matches before a line break there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ANCHOR = re.compile(r"(?<!\\)(?:\\\\)*\$(?![^\[]*\])")
"""A dollar that is neither escaped nor in a set."""

FUNCTIONS = {"compile", "match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"}


def patterns_in(source: str) -> Iterator[str]:
    """Patterns of Python's expressions and of msgspec, which uses them. Pydantic's are Rust's: there `$` is the end."""
    tree = ast.parse(source)
    constants = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        pattern: ast.expr | None = None
        match node.func:
            case ast.Attribute(value=ast.Name(id="re"), attr=name) if name in FUNCTIONS and node.args:
                pattern = node.args[0]
            case ast.Name(id="Meta") | ast.Attribute(attr="Meta"):
                pattern = next((keyword.value for keyword in node.keywords if keyword.arg == "pattern"), None)
        if isinstance(pattern, ast.Name):
            pattern = constants.get(pattern.id)
        for part in ast.walk(pattern) if pattern is not None else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


@pytest.mark.parametrize("package", ["stream", "arr_coc"])
def test_no_pattern_ends_before_a_line_break(package: str) -> None:
    patterns = [
        (str(path.relative_to(ROOT)), pattern)
        for path in sorted((ROOT / package).rglob("*.py"))
        for pattern in patterns_in(path.read_text(encoding="utf-8"))
    ]
    assert patterns
    assert [entry for entry in patterns if ANCHOR.search(entry[1])] == [], r"end a pattern with \Z, or use fullmatch"


@pytest.mark.parametrize(
    ("source", "is_reported"),
    [
        ('re.compile(r"^a$")', True),
        ('re.match("(a|$)", text)', True),
        ('Meta(pattern=r"^a$")', True),
        ('NAME = "a$"\nMeta(pattern=NAME)', True),
        ('re.compile(rf"{x}$")', True),
        (r"""re.compile(r"a\$")""", False),
        ('re.compile("[$a]")', False),
        (r"""re.compile(r"a\Z")""", False),
        ('Field(pattern="^a$")', False),
    ],
)
def test_a_pattern_is_read_wherever_it_stands(source: str, is_reported: bool) -> None:
    assert any(ANCHOR.search(pattern) for pattern in patterns_in(source)) == is_reported
