"""Docstrings of the product: their first words, and the arguments of public functions."""

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


MANY_ARGUMENTS = 4

WITHOUT_ARGS = {
    "lazy_initialization",  # overrides a method of transformers
    "add_watch",  # its docstring is the description that agents read; its fields have their own
}


def argument_count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in arguments)


def is_overload(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in function.decorator_list)


def test_arguments_are_documented_if_there_are_many() -> None:
    documented, missing = set(WITHOUT_ARGS), dict[str, str]()
    for path in SOURCES:
        if "commands" in path.parts or path.name == "command.py":  # options have help texts
            continue
        for node in public(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if "Args:" in (ast.get_docstring(node) or ""):
                documented.add(node.name)
            elif argument_count(node) >= MANY_ARGUMENTS and not is_overload(node):
                missing[f"{module_name(path)}.{node.name}"] = node.name
    # A method without Args has those of its protocol or base class.
    assert [place for place, name in missing.items() if name not in documented] == []
