"""The limit of a test process's memory."""

from __future__ import annotations

import psutil

from tests.support.peak_memory import LIMIT_BYTES, complaint, largest_process_bytes


def test_the_peak_is_in_bytes_and_at_least_what_is_held_now() -> None:
    held_bytes = psutil.Process().memory_info().rss
    assert 0.9 * held_bytes < largest_process_bytes() < psutil.virtual_memory().total


def test_tests_above_the_limit_are_reported() -> None:
    assert complaint(LIMIT_BYTES) is None
    reported = complaint(9_470_456 * 1024)
    assert reported is not None
    assert reported.startswith("a process of the tests took 9.0 GiB of memory, which is more than 3 GiB")
