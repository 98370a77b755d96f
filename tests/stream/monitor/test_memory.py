"""Resident memory of processes, now and sampled."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from unittest.mock import Mock

import pytest

from stream.monitor.statistics import MemorySampler, resident_bytes


def test_processes_that_are_gone_are_left_out() -> None:
    assert list(resident_bytes({"frames": os.getpid(), "answers": 2**22 + 1})) == ["frames"]


def test_memory_is_looked_at_from_the_first_moment_on() -> None:
    calls: list[Mapping[str, int]] = []

    def processes() -> Mapping[str, int]:
        calls.append({"frames": os.getpid()})
        return calls[-1]

    with MemorySampler(processes, period_s=3600) as watch:
        pass
    assert len(watch.samples) == len(calls) == 1
    assert watch.samples[0].total_bytes > 10_000_000
    with MemorySampler(dict, period_s=3600) as empty:
        pass
    assert list(empty.samples[0].rss_bytes) == ["sinks"]


def test_without_descriptors_no_process_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.Process", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
    assert resident_bytes({"frames": os.getpid()}) == {}
