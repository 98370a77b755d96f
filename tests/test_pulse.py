"""A sign of life through a pipe: heard, missed, and never in anybody's way."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from stream.runtime import child as child_module
from stream.runtime.child import LOADING, READY, Heartbeat, HeartbeatMonitor
from tests.waiting import LIMIT_S


@pytest.fixture
def reader() -> Iterator[HeartbeatMonitor]:
    made = HeartbeatMonitor()
    yield made
    made.close_writer()
    made.close()


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(child_module.time, "monotonic", lambda: now[0])
    return now


class Beating:
    """What a Heartbeat asks before each beat; `stop` returns once there will be no other one."""

    def __init__(self) -> None:
        self.asked = 0
        self._stopping = False
        self._stopped = threading.Event()
        self._thrice = threading.Event()

    def __call__(self) -> bool:
        self.asked += 1
        if self.asked > 2:
            self._thrice.set()
        if self._stopping:
            self._stopped.set()
        return not self._stopping

    def some(self) -> None:
        assert self._thrice.wait(LIMIT_S)

    def stop(self) -> None:
        self._stopping = True
        assert self._stopped.wait(LIMIT_S)


@pytest.fixture
def beating(monkeypatch: pytest.MonkeyPatch) -> Iterator[Beating]:
    monkeypatch.setattr(child_module, "BEAT_S", 0.01)
    made = Beating()
    yield made
    made.stop()


def test_silence_counts_from_the_last_beat(seconds: list[float], reader: HeartbeatMonitor) -> None:
    seconds[0] += 2
    os.write(reader.writer, READY)
    assert reader.silence_s() == 0
    seconds[0] += 1.5
    assert reader.silence_s() == 1.5
    os.write(reader.writer, READY * 3)
    assert reader.silence_s() == 0


def test_a_process_that_loads_is_not_expected_to_beat(seconds: list[float], reader: HeartbeatMonitor) -> None:
    seconds[0] += 100
    assert reader.silence_s() == 0
    os.write(reader.writer, LOADING)
    assert reader.silence_s() == 0
    seconds[0] += 100
    assert reader.silence_s() == 0


def test_once_ready_it_stays_so(seconds: list[float], reader: HeartbeatMonitor) -> None:
    os.write(reader.writer, LOADING + READY + LOADING)
    reader.silence_s()
    os.write(reader.writer, LOADING)
    reader.silence_s()
    seconds[0] += 3
    assert reader.silence_s() == 3


def test_the_child_first_says_that_it_loads_then_that_it_is_ready(reader: HeartbeatMonitor, beating: Beating) -> None:
    heartbeat = Heartbeat(reader.writer, beating)
    beating.some()
    assert set(os.read(reader._reader, 100)) == {LOADING[0]}
    heartbeat.ready()
    asked = beating.asked
    while beating.asked < asked + 3:
        threading.Event().wait(0.01)
    assert READY in os.read(reader._reader, 100)


def test_a_child_that_is_not_lively_is_silent(reader: HeartbeatMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "BEAT_S", 0.01)
    beating = Beating()
    beating._stopping = True
    Heartbeat(reader.writer, beating).ready()
    beating.some()
    with pytest.raises(BlockingIOError):
        os.read(reader._reader, 100)


def test_a_full_pipe_blocks_nobody(reader: HeartbeatMonitor, beating: Beating) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(reader.writer, LOADING * 4096)
    Heartbeat(reader.writer, beating)
    beating.some()
    assert reader.silence_s() == 0


def test_a_parent_that_is_gone_disturbs_no_child(monkeypatch: pytest.MonkeyPatch, beating: Beating) -> None:
    reader = HeartbeatMonitor()
    reader.close()
    Heartbeat(reader.writer, beating)
    beating.some()
    beating.stop()
    reader.close_writer()
