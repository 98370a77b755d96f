"""Many readers, one writer: who waits for whom, and that no reader sees half a frame."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from arr_coc.errors import LeaseTimeout
from arr_coc.ops.backends import open_store
from arr_coc.ops.leases import Leases
from arr_coc.ops.planes import PlaneFormat
from tests.plane_maker import flat_planes, stamp
from tests.waiting import LIMIT_MS


def started(name: str, work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def test_readers_read_together_and_a_thread_may_read_twice() -> None:
    leases = Leases()
    together = threading.Barrier(2, timeout=LIMIT_MS / 1e3)

    def read() -> None:
        with leases.reading(LIMIT_MS), leases.reading(LIMIT_MS):
            together.wait()

    other = started("other", read)
    read()
    other.join(LIMIT_MS / 1e3)
    with leases.writing(0):
        pass


def test_a_writer_that_waits_too_long_names_both_sides() -> None:
    leases = Leases()
    with leases.reading(0), pytest.raises(LeaseTimeout) as caught, leases.writing(1):
        pass
    assert "'MainThread' waited 1 ms to write" in str(caught.value)
    assert "which thread 'MainThread' still read" in str(caught.value)


def test_a_reader_that_waits_too_long_names_both_sides() -> None:
    leases = Leases()
    written, done = threading.Event(), threading.Event()

    def write() -> None:
        with leases.writing(LIMIT_MS):
            written.set()
            done.wait(LIMIT_MS / 1e3)

    writer = started("writer", write)
    written.wait(LIMIT_MS / 1e3)
    with pytest.raises(LeaseTimeout, match=r"'MainThread' waited 1 ms to read .* thread 'writer'"), leases.reading(1):
        pass
    with pytest.raises(LeaseTimeout, match="which thread 'writer' still"), leases.writing(1):
        pass
    done.set()
    writer.join(LIMIT_MS / 1e3)
    with leases.reading(0):
        pass


def test_a_waiting_writer_goes_before_new_readers_but_not_before_nested_ones() -> None:
    leases = Leases()
    order: list[str] = []

    def write() -> None:
        with leases.writing(LIMIT_MS):
            order.append("written")

    def read_late() -> None:
        with leases.reading(LIMIT_MS):
            order.append("read late")

    with leases.reading(LIMIT_MS):
        writer = started("writer", write)
        while not leases.writer_waits:
            pass
        late = started("late", read_late)
        with leases.reading(0):
            order.append("read nested")
    writer.join(LIMIT_MS / 1e3)
    late.join(LIMIT_MS / 1e3)
    assert order == ["read nested", "written", "read late"]


def test_a_writer_that_fails_lets_go() -> None:
    leases = Leases()
    with pytest.raises(KeyError), leases.writing(0):
        raise KeyError
    with leases.reading(0):
        pass


def test_no_torn_reads() -> None:
    """Every frame is one colour, so any mixture of two frames on any level would show."""
    frames = [flat_planes(256, 256, (value, 128, 128)) for value in (40, 90, 140, 190)]
    store = open_store(PlaneFormat.of(frames[0]), lease_timeout_ms=LIMIT_MS)
    store.update(frames[0], stamp(0))
    ready, stop = threading.Barrier(3, timeout=LIMIT_MS / 1e3), threading.Event()
    torn: list[str] = []
    seen: set[int] = set()

    def read() -> None:
        ready.wait()
        while not stop.is_set():
            with store.lease() as view:
                frame = view.stamp.frame_index
                seen.add(frame)
                colours = [np.unique(view.read(level)).tolist() for level in range(6)]
                gathered = np.unique(view.gather(np.array([[0, 0, 0], [2, 1, 1], [0, 7, 7]]))).tolist()
                if any(colour != gathered for colour in colours) or (view.versions.frame != frame).any():
                    torn.append(f"frame {frame}: {colours} {gathered}")

    readers = [started(f"reader {number}", read) for number in range(2)]
    ready.wait()
    for index in range(1, 150):
        store.update(frames[index % 4], stamp(index))
    stop.set()
    for reader in readers:
        reader.join(LIMIT_MS / 1e3)
    assert torn == []
    assert len(seen) > 5
