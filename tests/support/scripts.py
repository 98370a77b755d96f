"""Tables of scripts: rows of steps, such as messages in and out, each with a name that says what it shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest


@dataclass(frozen=True)
class Like:
    """Something of a kind with these fields; a pattern is searched for, a dictionary holds fields of a field."""

    kind: type
    fields: dict[str, Any]


Expected: TypeAlias = object
"""A message or event, its type, or what it is like."""


def like(kind: type, **fields: Any) -> Like:
    return Like(kind, fields)


def check(actual: object, expected: Expected) -> None:
    """Fail unless this was expected."""
    if isinstance(expected, Like):
        assert isinstance(actual, expected.kind), f"{actual} came"
        check_fields(actual, expected.fields)
    elif isinstance(expected, type):
        assert isinstance(actual, expected), f"{actual} came"
    else:
        assert actual == expected, f"{actual} came, not {expected}"


def check_all(actual: list[Any], expected: tuple[Expected, ...]) -> None:
    """Fail unless these were expected, in this order."""
    assert len(actual) == len(expected), f"{actual} came, not {expected}"
    for each, expected_one in zip(actual, expected, strict=True):
        check(each, expected_one)


def check_fields(value: object, fields: dict[str, Any]) -> None:
    """Fail unless the fields of this value are as in `Like`."""
    for name, expected in fields.items():
        actual = getattr(value, name)
        if isinstance(expected, re.Pattern):
            assert expected.search(actual), f"{name} of {value} has no {expected.pattern}"
        elif isinstance(expected, dict):
            check_fields(actual, expected)
        else:
            assert actual == expected, f"{name} of {value} is not {expected}"


def containing(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))


@dataclass(frozen=True)
class Script:
    """Steps, in rounds that go on one after the other, and options of whatever they are done with."""

    rounds: tuple[list[Any], ...]
    options: dict[str, Any]

    @property
    def steps(self) -> list[Any]:
        return [step for each in self.rounds for step in each]


def case(name: str, *rounds: list[Any], **options: Any) -> Any:
    """A row of a table."""
    return pytest.param(Script(rounds, options), id=name)


def cases(*rows: Any, **options: Any) -> pytest.MarkDecorator:
    """Run a test with each of these rows, with these options unless it has others."""
    for row in rows:
        for name, value in options.items():
            row.values[0].options.setdefault(name, value)
    return pytest.mark.parametrize("script", rows)
