"""Who the evaluation may import: transformers, PyAV and ZeroMQ stay where the project keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_imports import ROOT, imports_of, module_name, within

SOURCES = sorted((ROOT / "evaluation").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_libraries_are_reached_through_the_project(path: Path) -> None:
    for package in ("transformers", "av", "zmq", "tests", "benchmarks"):
        breach = [module for module in imports_of(path) if within(module, package)]
        assert not breach, f"{module_name(path)} imports {breach}"


def test_strategies_do_not_know_the_questions_they_are_measured_with() -> None:
    for path in (ROOT / "evaluation" / "strategies").glob("*.py"):
        breach = [
            module for module in imports_of(path) if within(module, "evaluation.suites") or within(module, "training")
        ]
        assert not breach, f"{module_name(path)} imports {breach}"
