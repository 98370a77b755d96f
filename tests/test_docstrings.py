"""Docstrings of the product: none of a module, public class or public function begins with a question word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.test_imports import SOURCES, module_name

QUESTION = re.compile(r"(What|How|Where|Who|Whom|Whose|Which|When|Whether|Why)\b")

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public(node: Documented) -> Iterator[Documented]:
    """A module or class and the public classes and functions in it."""
    yield node
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not child.name.startswith("_"):
            yield from public(child) if isinstance(child, ast.ClassDef) else [child]


def test_docstrings_begin_with_what_the_thing_is_or_does() -> None:
    first_lines = (
        f"{module_name(path)}: {documentation}"
        for path in SOURCES
        for node in public(ast.parse(path.read_text(encoding="utf-8")))
        if QUESTION.match(documentation := ast.get_docstring(node) or "")
    )
    assert list(first_lines) == []
