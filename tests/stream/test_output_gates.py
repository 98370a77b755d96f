"""Every text reaches a terminal through few functions, which make it printable; no other function prints."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for package in ("arr_coc", "stream") for path in (ROOT / package).rglob("*.py"))

PRINTS = {"print", "typer.echo", "typer.secho", "click.echo", "traceback.print_exc", "traceback.print_exception"}
PRINTS |= {
    f"sys.{name}.{method}" for name in ("stdout", "stderr") for method in ("write", "writelines", "buffer.write")
}
PRINTS |= {"Console", "Vt100_Output", "rich.print", "logging.StreamHandler", "os.write", "warnings.warn"}

SHOWN_BY = ("stream.cli", "stream.commands", "stream.logs", "stream.sinks", "stream.display")
"""Packages in which `os.write` may lead to a terminal; elsewhere it writes files and pipes."""

GATES = {
    ("stream.logs", "show", "print"),
    ("stream.logs", "write_line", "os.write"),
    ("stream.logs", "write_now", "os.write"),
    ("stream.logs", "set_up", "logging.StreamHandler"),
    ("stream.logs", "print_line", "print"),
}
"""Functions by which text becomes output: each makes it printable, as a separate test checks."""

CONSTANT = {
    ("stream.cli", "_print_version", "typer.echo"),
    ("stream.cli", "root", "typer.echo"),
    ("stream.extensions.live.display", "__init__", "print"),
    ("stream.extensions.live.display", "_end_waiting", "print"),
}
"""They print the program's own texts, and no others."""

ELSEWHERE = {
    ("arr_coc.backends.registry", "main", "print"),
    *(("arr_coc.finetune.__main__", name, "print") for name in ("main", "_run", "show", "_on_signal")),
    ("stream.runtime.answer_worker", "main", "traceback.print_exc"),
    ("stream.runtime.fork_server", "_run_and_exit", "traceback.print_exc"),
    ("stream.runtime.frame_worker", "_run", "traceback.print_exc"),
    ("stream.sinks.output_file", "_write_all", "os.write"),
    ("stream.extensions.web.uploads.decoder", "main", "sys.stdout.buffer.write"),
}
"""Files, pipes, and the output of a child for its parent, which shows it through a gate."""


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def printing(node: ast.AST, function: str = "") -> Iterator[tuple[str, str]]:
    """Each call that prints: the function around it, and the called function."""
    for child in ast.iter_child_nodes(node):
        caller = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        if isinstance(child, ast.Call) and dotted(child.func) in PRINTS:
            yield caller, dotted(child.func)
        yield from printing(child, caller)


def found() -> set[tuple[str, str, str]]:
    calls: set[tuple[str, str, str]] = set()
    for path in SOURCES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for function, called in printing(ast.parse(path.read_text(encoding="utf-8"))):
            if called != "os.write" or module.startswith(SHOWN_BY):
                calls.add((module, function, called))
    return calls


def test_only_the_gates_print() -> None:
    gates = GATES | CONSTANT | ELSEWHERE
    assert not found() - gates, "print through stream.logs.say or stream.logs.print_line, PlainConsole for rich"
    assert not gates - found(), "these do not print any more; take them out of the list"


@pytest.mark.parametrize(
    "source", ["print('x')", "def f():\n    typer.echo('x')", "sys.stderr.write('x')", "Console()"]
)
def test_calls_that_print_are_found(source: str) -> None:
    assert list(printing(ast.parse(source)))
