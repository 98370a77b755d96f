"""Numbers with their nouns, wherever a person reads them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from arr_coc.errors import counted, of_counted

ROOT = Path(__file__).resolve().parents[2]

NOUNS = "answer|attempt|byte|check|core|cut|file|frame|look|question|record|restart|run|stream|tile|token|weight"
PLURAL = re.compile(rf" (?:[a-z]+ )?(?:{NOUNS})s\b")

NEVER_ONE = {
    "CONFIG_BYTES_MAX",
    "EMBEDS_MAX",
    "FRAME_BYTES_MAX",
    "TEXT_BYTES_MAX",
    "request_tokens",
    "vocabulary",
    "expected",
    "expected_bytes",
    "memory_bytes",
    "len(data)",
    "TEXT_TOKENS_MAX",
    "IGNORED",
    "BUDGET_MAX",
    "bufsize",
    "figures.fps",
    "limit",
    "reply.prompt_tokens",
    "TOKENS_MAX",
    "SIDE_MAX_TILES",
    "TEXT_TOKENS",
    "2 * rounds",
    "nbytes",
    "cols",
}
"""Tokens of a whole prompt or vocabulary, limits, and sizes of files and messages."""

NAMES = {"name", "self.name", "self.option", "self._dtype", "base", "allocator"}
"""No numbers: `NAME answers at ADDRESS`, `SCENE has frames 0..9`, `a model of --api answers`."""

SOURCES = [
    path
    for folder in ("stream", "arr_coc")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not {"backends", "ops", "texture"} & set(path.parts)  # whose messages are of shapes, for those who call it
]


def numbers_before_plurals(path: Path) -> Iterator[str]:
    """Every expression in a text that comes right before a noun in the plural."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            for value, text in pairwise(node.values):
                if (
                    isinstance(value, ast.FormattedValue)
                    and isinstance(text, ast.Constant)
                    and PLURAL.match(text.value)
                ):
                    yield ast.unparse(value.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(rf"%d{PLURAL.pattern}", node.value)


def test_messages_count_with_the_function() -> None:
    violations = {
        (path.relative_to(ROOT).as_posix(), number)
        for path in SOURCES
        for number in numbers_before_plurals(path)
        if number not in NEVER_ONE | NAMES
    }
    assert violations == set()


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 tiles"), (1, "1 tile"), (2, "2 tiles"), (-1, "-1 tiles"), (21, "21 tiles")]
)
def test_the_noun_goes_with_the_number(number: int, text: str) -> None:
    assert counted(number, "tile") == text


def test_other_plurals_and_parts() -> None:
    assert [counted(number, "look", "glances") for number in (1, 2)] == ["1 look", "2 glances"]
    assert [of_counted(1, total, "token") for total in (1, 4)] == ["1 of 1 token", "1 of 4 tokens"]
