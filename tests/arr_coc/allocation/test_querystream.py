"""QueryStream: what is relevant and new against a smoothed history, within the budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import StreamAllocator, suits_device
from arr_coc.allocation.attending import allocate
from arr_coc.allocation.querystream import relevant_news
from arr_coc.allocation.strategies import AllocationHistory
from tests.arr_coc.allocation.test_evs import COLS, ROWS, changed_picture, tiles_of
from tests.arr_coc.allocation.test_evs import OPTIONS as EVS_OPTIONS
from tests.support.groups import nothing_near
from tests.support.video import PictureStream, scenery

OPTIONS = replace(EVS_OPTIONS, strategy="querystream")


@pytest.fixture(autouse=True, scope="module")
def _nothing_near() -> Iterator[None]:
    with nothing_near():
        yield


def test_relevant_and_new_tiles_come_first() -> None:
    relevance = np.array([[0.9, 0.1, 0.8, 0.2, 0.7]], np.float32)
    novelty = np.array([[0.0, 50.0, 2.0, 9.0, 2.2]])
    order = [np.flatnonzero(relevant_news(relevance, novelty, tokens)[0]).tolist() for tokens in range(1, 6)]
    # 2 and 4 are new and relevant; 1 and 3 are new: 5 and 1.8 by the product; 0 shows nothing new
    assert order == [[2], [2, 4], [1, 2, 4], [1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert np.flatnonzero(relevant_news(relevance, None, 2)[0]).tolist() == [0, 2], "without a history all are new"
    assert np.flatnonzero(relevant_news(relevance, np.zeros((1, 5)), 2)[0]).tolist() == [0, 2], "nothing is new"


def test_the_first_frame_shows_the_most_relevant_tiles_and_later_ones_what_is_new() -> None:
    stream, allocator, picture = PictureStream(), StreamAllocator(OPTIONS), scenery(ROWS, COLS)
    first = allocator.allocate(stream.show(picture))
    assert first.strategy == "querystream"
    relevance = first.relevance.numpy()
    assert np.array_equal(tiles_of(first), relevant_news(relevance, None, OPTIONS.budget))
    allocator.mark_answered()
    later = allocator.allocate(stream.show(changed_picture(picture, (5, 9))))
    assert tiles_of(later)[5, 9]
    assert not np.array_equal(tiles_of(later), relevant_news(later.relevance.numpy(), None, OPTIONS.budget))


def test_what_changed_once_stays_new_until_the_history_has_it() -> None:
    one = replace(OPTIONS, budget=1)
    pictures = [scenery(ROWS, COLS)]
    pictures.append(changed_picture(pictures[0], (2, 3)))
    changes = {}
    for name in ("querystream", "evs"):
        stream, allocator = PictureStream(), StreamAllocator(replace(one, strategy=name))
        changes[name] = []
        for picture in (pictures[0], *[pictures[1]] * 6):
            change = allocator.allocate(stream.show(picture)).inputs.change
            changes[name].append(None if change is None else float(change[2, 3]))
            allocator.mark_answered()
    assert changes["evs"][0] is None
    assert changes["evs"][1] > 0
    assert changes["evs"][2:] == [0] * 5
    first, *others = changes["querystream"][1:]
    assert first == changes["evs"][1]
    assert others == pytest.approx([first * 0.9**step for step in range(1, 6)], rel=0.03)


def test_a_cut_begins_a_new_history() -> None:
    stream, allocator, picture = PictureStream(), StreamAllocator(OPTIONS), scenery(ROWS, COLS)
    allocator.allocate(stream.show(picture))
    allocator.mark_answered()
    stream.cut()
    assert allocator.allocate(stream.show(changed_picture(picture, (1, 1)))).inputs.change is None


def test_the_library_takes_a_map_of_change() -> None:
    change = torch.zeros(ROWS, COLS)
    change[2, 3] = change[4, 4] = 1
    relevance = np.full((ROWS, COLS), 0.1, np.float32)
    relevance[4, 4] = 0.5
    regions = allocate(relevance, 1, "querystream", memory=AllocationHistory(change=change)).regions
    assert regions.tolist() == [[0, 4, 4]]


def test_the_host_chooses_it() -> None:
    assert not suits_device(OPTIONS, "core13")
