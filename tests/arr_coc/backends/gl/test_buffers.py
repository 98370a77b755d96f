"""Memory that is filled and emptied round and round."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from arr_coc.backends.gl.buffers import ALIGNMENT, MOST_IN_FLIGHT, Fence, MappedBuffer, UploadRing, align
from arr_coc.backends.gl.library import TIMEOUT_EXPIRED
from arr_coc.errors import DeviceLost
from tests.support.stores import own_device, read_on_device, shared_device


class Marks(Fence):
    """A fence that passes at the test's command, or when it is waited for."""

    def __init__(self, is_past: bool = False) -> None:
        self.is_past = is_past
        self.waits = 0

    def has_passed(self) -> bool:
        return self.is_past

    def wait(self, activity: str) -> None:
        self.waits += 1
        self.is_past = True

    def __del__(self) -> None:
        pass


def ring_of(nbytes: int) -> UploadRing:
    device = shared_device()
    with device.current():
        return UploadRing(device, nbytes)


def test_parts_in_flight_do_not_overlap_and_begin_aligned() -> None:
    ring = ring_of(10 * ALIGNMENT)
    slices = []
    for nbytes in (100, 300, 1, 1000):
        slot = ring.take(nbytes)
        ring.seal(Marks())
        assert slot.memory.nbytes == nbytes
        slices.append((slot.offset, slot.offset + nbytes))
    assert [start % ALIGNMENT for start, _ in slices] == [0] * 4
    assert all(end <= start for (_, end), (start, _) in pairwise(slices))
    assert ring.stalls == 0


def test_a_part_in_use_is_waited_for_and_one_that_is_free_is_not() -> None:
    ring = ring_of(4 * ALIGNMENT)
    marks = [Marks(), Marks(), Marks(is_past=True)]
    for mark, parts in zip(marks, (1, 2, 1), strict=True):
        ring.take(parts * ALIGNMENT)
        ring.seal(mark)
    assert ring.take(ALIGNMENT).offset == 0
    ring.seal(Marks())
    assert [mark.waits for mark in marks] == [1, 0, 0]
    marks[1].is_past = True
    assert ring.take(2 * ALIGNMENT).offset == ALIGNMENT
    ring.seal(Marks())
    assert ring.stalls == 1
    assert ring.take(ALIGNMENT).offset == 3 * ALIGNMENT
    assert ring.stalls == 1


def test_an_upload_that_does_not_fit_behind_begins_in_front_and_waits_for_all_that_it_covers() -> None:
    ring = ring_of(4 * ALIGNMENT)
    marks = [Marks() for _ in range(3)]
    for mark in marks:
        ring.take(ALIGNMENT)
        ring.seal(mark)
    assert ring.take(2 * ALIGNMENT).offset == 0
    assert [mark.waits for mark in marks] == [1, 1, 0]


def test_marks_do_not_pile_up() -> None:
    ring = ring_of(2 * MOST_IN_FLIGHT * ALIGNMENT)
    first = Marks()
    for mark in (first, *(Marks() for _ in range(MOST_IN_FLIGHT))):
        ring.take(1)
        ring.seal(mark)
    assert first.waits == 1


def test_sizes_are_rounded_up() -> None:
    assert [align(nbytes) for nbytes in (0, 1, 256, 257)] == [0, 256, 256, 512]


def test_memory_written_is_what_the_device_sees() -> None:
    device = shared_device()
    with device.current():
        buffer = MappedBuffer(device, 1024, "read")
        buffer.memory[:] = np.arange(1024) % 251
        np.testing.assert_array_equal(read_on_device(device, buffer), buffer.memory)


def test_memory_that_the_device_has_not_is_refused() -> None:
    device = shared_device()
    with device.current(), pytest.raises(DeviceLost, match="out of memory while making a buffer of 35184372088832"):
        MappedBuffer(device, 1 << 45, "write")
    assert device.loss_reason is None


def test_unused_fences_are_deleted() -> None:
    device = shared_device()
    is_sync = device.library.gl.glIsSync
    with device.current():
        fence = Fence(device)
        sync = fence._sync
        assert is_sync(sync)
        del fence
    with device.current():
        assert not is_sync(sync)


def test_a_device_that_does_not_finish_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    device = own_device()
    with device.current():
        fence = Fence(device)
        assert fence.has_passed()
        fence.wait("this")
        monkeypatch.setattr(device.library.calls, "glClientWaitSync", lambda *_: TIMEOUT_EXPIRED)
        assert not fence.has_passed()
        with pytest.raises(DeviceLost, match="did not finish that within 5000 ms"):
            fence.wait("that")
    with pytest.raises(DeviceLost, match="open a new store"), device.current():
        pass
