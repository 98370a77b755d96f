"""Counts of habits: what counts as one, and that the product keeps within the limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.habits import LIMITS, occurrences, rates


@pytest.mark.parametrize(
    ("source", "habits"),
    [
        ("a, self.b = 1, x", ["tuple assignments"]),
        ("a, b = pair", []),
        ("a = (1, 2)", []),
        ("a = b if c else d", ["conditional expressions"]),
        ("a = [b if c else d for c in e]", ["conditional expressions"]),
        ("def _help(): ...\n_help()", ["private helpers used once"]),
        ("def _help(): ...\n_help(), _help()", []),
        ("def help(): ...\nhelp()", []),
        (
            "class A:\n    def __len__(self): ...\n    def _at(self): ...\n    def at(self): self._at()",
            ["private helpers used once"],
        ),
    ],
)
def test_a_habit_is_counted(source: str, habits: list[str]) -> None:
    assert [occurrence.habit for occurrence in occurrences(Path("a.py"), source)] == habits


def test_the_product_keeps_within_the_limits() -> None:
    assert {habit: rate for habit, rate in rates().items() if rate > LIMITS[habit]} == {}
