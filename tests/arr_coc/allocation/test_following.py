"""Relevance, feedback and choices follow what the picture shows, in drawn clips whose motion is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.types import Feedback, FrameStamp
from arr_coc.video.picture_allocator import FrameAllocator
from tests.support.camera_moves import (
    COLS,
    ROWS,
    Pose,
    clutter,
    document,
    film,
    matrix_of,
    planes,
    through,
    tile_middles,
    wall_with_picture,
)

FRAME_NS = 33_366_667
Places = npt.NDArray[np.float64]


def stamp(index: int) -> FrameStamp:
    return FrameStamp(index, index * FRAME_NS, index * FRAME_NS)


def taught(frame: FrameAllocation, row: int, col: int) -> Feedback:
    """An answer that looked at two by two tiles, and at all others evenly."""
    places = [(0, r, c) for r in range(ROWS) for c in range(COLS)]
    weights = [1.0 if r in (row, row + 1) and c in (col, col + 1) else 0.01 for _, r, c in places]
    attention, regions = np.array(weights, np.float32), np.array(places, np.int32)
    return Feedback(frame.stamp, regions, attention, np.zeros_like(attention))


def centre_of(weights: npt.NDArray[np.float32]) -> Places:
    """x and y of the middle of what is well above the rest, in tiles."""
    above = np.maximum(weights - 0.5 * weights.max(), 0)
    rows, cols = np.mgrid[0:ROWS, 0:COLS]
    return np.array([(above * cols).sum(), (above * rows).sum()]) / above.sum()


def way_of(wide: npt.NDArray[np.uint8], first: Pose, last: Pose, at: Places) -> Places:
    """The place in the last pose's picture of a place (x, y) of the first one's, both in tiles."""
    back = np.linalg.inv(np.vstack([matrix_of(wide.shape, first), [0, 0, 1]]))[:2]
    pixels = through(matrix_of(wide.shape, last), through(back, at * 32 + 15.5))
    return (pixels - 15.5) / 32


def evaluated(allocator: StreamAllocator) -> npt.NDArray[np.float32] | None:
    """Feedback of answers, as if no time had passed."""
    memory, frame = allocator._memory, allocator._last
    assert memory is not None
    assert frame is not None
    assert frame.maps is not None
    prior = memory.prior.evaluate(0, frame.maps.looks)
    return None if prior is None else prior.numpy()


CLIPS: dict[str, Sequence[Pose]] = {
    "slow pan": [(-1.5 * i, 0.5 * i, 1.0, 0.0) for i in range(60)],
    "pan": [(-6.0 * i, 2.0 * i, 1.0, 0.0) for i in range(30)],
    "zoom": [(0.0, 0.0, 1.1 * 1.012**i, 0.0) for i in range(30)],
    "turn": [(0.0, 0.0, 1.1, 0.8 * i) for i in range(30)],
}


@pytest.mark.parametrize("draw", [clutter, document, wall_with_picture])
@pytest.mark.parametrize("name", list(CLIPS))
def test_attended_content_is_followed(name: str, draw) -> None:  # type: ignore[no-untyped-def]
    """Within half a tile, over a clip of a second or two."""
    wide, poses = draw(1), CLIPS[name]
    allocator = FrameAllocator(AllocatorOptions(budget=64, strategy="mixed"))
    row, col = ROWS // 2 - 2, COLS // 2 - 2
    for index, pose in enumerate(poses):
        result = allocator.allocate(planes(film(wide, pose)), stamp(index))
        if index == 0:
            allocator.on_answer(taught(result.allocation, row, col))
            continue
        prior = evaluated(allocator.allocator)
        assert prior is not None
        expected = way_of(wide, poses[0], pose, np.array([col + 0.5, row + 0.5]))
        assert centre_of(prior[0] * (prior[2] > 0.05)) == pytest.approx(expected, abs=0.5)


def test_a_thing_that_moves_over_a_still_ground_keeps_its_relevance() -> None:
    ground, thing = film(clutter(2), (0.0, 0.0, 1.0, 0.0)), clutter(3, 96, 96)
    allocator = FrameAllocator(AllocatorOptions(budget=64, strategy="mixed"))
    for index in range(40):
        picture, left = ground.copy(), 96 + 4 * index
        picture[160:256, left : left + 96] = thing
        result = allocator.allocate(planes(picture), stamp(index))
        if index == 0:
            allocator.on_answer(taught(result.allocation, 6, 4))
        prior = evaluated(allocator.allocator)
        if prior is not None and index:
            assert centre_of(prior[0] * prior[2]) == pytest.approx([4.5 + index / 8, 6.5], abs=0.5)


def text_in_the_middle() -> npt.NDArray[np.uint8]:
    """A paragraph on a wall with a little grain."""
    wide = document(4)
    rng = np.random.default_rng(4)
    wall = np.clip(170 + rng.normal(0, 3, wide.shape), 0, 255).astype(np.uint8)
    middle = slice(wide.shape[0] // 2 - 110, wide.shape[0] // 2 + 110), slice(540, 740)
    wall[middle] = wide[middle]
    return wall


@pytest.mark.parametrize("way", [(1.0, 0.0), (3.0, 1.0), (7.0, 0.0)])
def test_choices_of_a_panned_document_stay_on_it(way: tuple[float, float]) -> None:
    """The mean place of the chosen tiles varies by less than 0.2 tiles over 30 frames, once the pan is taken off."""
    wide, allocator, places = text_in_the_middle(), FrameAllocator(AllocatorOptions(budget=64, explore=0.0)), []
    for index in range(30):
        pose = (way[0] * (index - 15), way[1] * (index - 15), 1.0, 0.0)
        result = allocator.allocate(planes(film(wide, pose)), stamp(index))
        regions = result.packet.regions[result.packet.regions[:, 0] == 0]
        weights = result.packet.relevance[result.packet.regions[:, 0] == 0]
        middle = (regions[:, :0:-1] * weights[:, None]).sum(axis=0) / weights.sum()
        places.append(middle + np.array(way) * index / 32)
    assert np.std(places[3:], axis=0).max() < 0.2


def test_middles_of_tiles() -> None:
    assert tile_middles()[1, 2].tolist() == [79.5, 47.5]
