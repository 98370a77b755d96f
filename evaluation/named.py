"""The frozen suites, as the runner takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
        last: Question | None = None
        for index, sample in enumerate(suite_samples(name, count)):
            question = Question.of(index, sample)
            if last is not None and last.group and last.group == question.group:
                before, before_s = (*last.before, *last.frames), (*last.before_s, *last.times_s)
                question = replace(question, before=before, before_s=before_s)
            last = question
            yield question

    return Suite(name, suite_hash(name), questions)
