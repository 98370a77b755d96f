"""Frames kept in little memory, and the same as before."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest

from stream.bench.kept_frames import RECORD_BYTES, KeptFrames
from stream.events import FrameReady
from tests.event_maker import frame

FIELDS = set(FrameReady.__struct_fields__) - {"slot", "map"}


def test_every_number_of_a_frame_comes_back() -> None:
    numbers = {name: 3 + at for at, name in enumerate(FrameReady.__struct_fields__) if name in FIELDS}
    given = FrameReady(**numbers, slot=7)
    kept = KeptFrames()
    kept.append(given)
    kept.append(msgspec.structs.replace(given, duration_s=None))
    assert kept[0] == msgspec.structs.replace(given, slot=None)
    assert kept[1].duration_s is None


def test_it_is_a_list_of_frames() -> None:
    kept = KeptFrames()
    kept.extend(frame(index, index / 25) for index in range(6))
    assert (len(kept), kept[-1].frame_index) == (6, 5)
    assert [one.frame_index for one in kept[1:5:2]] == [1, 3]
    kept[0] = frame(9, 9.0)
    kept.insert(1, frame(8, 8.0))
    del kept[2:4], kept[-1]
    assert [one.frame_index for one in kept] == [9, 8, 3, 4]
    for index in (4, -5):
        with pytest.raises(IndexError):
            kept[index]
    with pytest.raises(TypeError, match="one by one"):
        kept[0:1] = [frame(0, 0.0)]


def test_a_frame_takes_little_memory() -> None:
    kept = KeptFrames()
    given = [frame(10_000 + index, 1000.0 + index / 30, ready_ns=10**12 + index) for index in range(2000)]
    tracemalloc.start()
    try:
        for one in given:
            kept.append(one)
        assert tracemalloc.get_traced_memory()[0] < 2000 * 1.3 * RECORD_BYTES
    finally:
        tracemalloc.stop()
