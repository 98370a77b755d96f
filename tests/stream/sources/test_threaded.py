"""Queue between the thread that reads a live source and its consumer."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from arr_coc.types import FramePlanes
from stream.errors import SourceError
from stream.media import SkippedItem, SourceFrame, SourceOutage
from stream.sources import threaded
from stream.sources.threaded import FrameQueue

PLANES = FramePlanes("gray", (np.zeros((2, 2), np.uint8),))


def frame(index: int, discontinuity: str | None = None, *losses: SkippedItem) -> SourceFrame:
    return SourceFrame(index, index, index, PLANES, discontinuity, losses)


def indexes(items: list[SourceFrame | SourceOutage] | None) -> list[int]:
    assert items is not None
    return [item.frame_index for item in items if isinstance(item, SourceFrame)]


@pytest.fixture
def queue() -> FrameQueue:
    queue = FrameQueue(2)
    yield queue
    queue.close()


def test_frames_are_taken_in_order_and_once(queue: FrameQueue) -> None:
    outage = SourceOutage(0, 0, "gone")
    for item in (frame(0), outage, frame(1)):
        queue.put(item)
    assert queue.drain() == [frame(0), outage, frame(1)]
    assert queue.drain() == []


def test_it_is_readable_while_there_is_something_to_take(queue: FrameQueue) -> None:
    assert not queue.wait(0)
    queue.put(frame(0))
    assert queue.wait(0)
    queue.drain()
    assert not queue.wait(0)
    queue.finish()
    assert queue.wait(0)
    assert queue.drain() is None
    assert queue.wait(0)


def test_the_oldest_frame_is_dropped_and_counted_and_its_metadata_kept(queue: FrameQueue) -> None:
    loss = SkippedItem("packet 3", "bad")
    queue.put(frame(0, "reconnect", loss))
    outage = SourceOutage(0, 0, "gone")
    queue.put(outage)
    for index in (1, 2, 3):
        queue.put(frame(index))
    assert queue.drain() == [outage, frame(2, "reconnect", loss), frame(3)]
    assert queue.dropped == 2


def test_outages_are_kept_but_not_without_end(queue: FrameQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threaded, "ITEMS_MAX", 3)
    outages = [SourceOutage(index, 0, "gone") for index in range(5)]
    for outage in outages:
        queue.put(outage)
    assert queue.drain() == outages[2:]
    assert queue.dropped == 0


def test_frames_before_the_end_are_taken_first(queue: FrameQueue) -> None:
    queue.put(frame(0))
    queue.finish(SourceError("gone"))
    assert indexes(queue.drain()) == [0]
    with pytest.raises(SourceError, match="gone"):
        queue.drain()


def test_a_producer_can_wait_for_room(queue: FrameQueue) -> None:
    assert queue.put_wait(frame(0), 0)
    assert queue.put_wait(frame(1), 0)
    assert not queue.put_wait(frame(2), 0.001)
    giver = threading.Thread(target=queue.put_wait, args=(frame(2), 10))
    giver.start()
    items = queue.drain() or []
    giver.join()
    assert indexes([*items, *(queue.drain() or [])]) == [0, 1, 2]
    assert queue.dropped == 0


def test_closing_closes_its_descriptors_and_takes_no_more(queue: FrameQueue) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    other = FrameQueue()
    other.close()
    other.close()
    other.put(frame(0))
    other.finish()
    assert other.put_wait(frame(0), 0)
    assert other.drain() is None
    assert before is None or len(os.listdir("/proc/self/fd")) == before
