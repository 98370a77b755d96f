"""Resident memory of the processes of a run, now and sampled over time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

import psutil

PERIOD_S = 0.5


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Resident bytes of each process that was there at `at_ns` (monotonic), by what the process does."""

    at_ns: int
    rss_bytes: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """Pages that processes share count once for each."""
        return sum(self.rss_bytes.values())


def resident_bytes(processes: Mapping[str, int]) -> dict[str, int]:
    """Resident memory of each process that still runs; `processes` gives their ids by name. Shared pages count for
    each."""
    held: dict[str, int] = {}
    for name, pid in processes.items():
        with suppress(psutil.Error):
            held[name] = psutil.Process(pid).memory_info().rss
    return held


class MemorySampler:
    """Samples while it is entered, in a thread of its own, from the first moment on.

    `processes` gives the ids of the run's processes by what they do; this one, where it is none of them, is "sinks".
    """

    def __init__(self, processes: Callable[[], Mapping[str, int]], period_s: float = PERIOD_S) -> None:
        self._processes = processes
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="memory", daemon=True)
        self.samples: list[MemorySample] = []

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        self._sample()
        while not self._stop.wait(self._period_s):
            self._sample()

    def _sample(self) -> None:
        processes = dict(self._processes())
        if os.getpid() not in processes.values():
            processes["sinks"] = os.getpid()
        self.samples.append(MemorySample(time.monotonic_ns(), resident_bytes(processes)))
