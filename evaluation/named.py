"""The frozen suites, as the runner takes them."""

from __future__ import annotations

from collections.abc import Iterator

from evaluation.errors import SuiteError
from evaluation.question import Question
from evaluation.runner import Suite
from evaluation.suites import SUITES, suite_hash, suite_samples


def named_suite(name: str, count: int | None = None) -> Suite:
    """A suite's first `count` questions, all where that is None.

    Raises SuiteError, naming the suites that there are.
    """
    if name not in SUITES:
        raise SuiteError(f"unknown suite {name!r}; there are {', '.join(SUITES)}")

    def questions() -> Iterator[Question]:
        for index, sample in enumerate(suite_samples(name, count)):
            yield Question.of(index, sample)

    return Suite(name, suite_hash(name), questions)
