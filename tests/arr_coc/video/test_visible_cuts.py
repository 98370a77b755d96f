"""Scene cuts of a picture with a mask: what is black takes no part, and what is seen decides."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.types import FramePlanes, FrameStamp
from arr_coc.video.cuts import CutVerdict
from arr_coc.video.picture_mask import PictureMask
from arr_coc.video.texture_updater import TextureOptions, TextureUpdater
from arr_coc.video.visible_cuts import COVERED_SHARE, PARTS_MAX, TileBox, visible_boxes
from stream.scenes import load_scene
from tests.arr_coc.video.test_cuts import HEIGHT, STILL, WIDTH, Picture, frame, picture
from tests.support.polygons import box_polygon
from tests.support.video import flat_planes

LEFT_HALF = ((0.0, 0.0, 0.5, 1.0),)
MOST = ((0.3, 0.0, 1.0, 1.0),)
MIDDLE = ((0.2, 0.2, 0.8, 0.8),)
BORDER = ((0.0, 0.0, 1.0, 0.25), (0.0, 0.75, 1.0, 1.0), (0.0, 0.0, 0.25, 1.0), (0.75, 0.0, 1.0, 1.0))
ALL = ((0.0, 0.0, 1.0, 1.0),)

Boxes = tuple[tuple[float, float, float, float], ...]


def verdicts(boxes: Boxes, frames: Iterable[FramePlanes]) -> list[CutVerdict]:
    """Verdicts for frames that are masked as a run masks them."""
    polygons = tuple(map(box_polygon, boxes))
    mask, updater = PictureMask(polygons), TextureUpdater(TextureOptions(masks=polygons))
    return [updater.process(mask.apply(planes), FrameStamp(i, 0, 0)).cut for i, planes in enumerate(frames)]


def cuts(boxes: Boxes, pictures: Iterable[Picture]) -> list[int]:
    results = verdicts(boxes, map(frame, pictures))
    return [index for index, verdict in enumerate(results) if verdict.is_cut]


@pytest.mark.parametrize(
    ("boxes", "least"), [(LEFT_HALF, 9), (MOST, 6), (MIDDLE, 5), (BORDER, 9)], ids=["half", "most", "middle", "border"]
)
def test_a_cut_is_found_in_what_is_seen(boxes: Boxes, least: int) -> None:
    """In strips of a tile or two, which hold little, some are missed."""
    results = [cuts(boxes, [*STILL, *[picture(seed)] * 2]) for seed in range(50, 60)]
    assert results.count([len(STILL)]) >= least
    assert results.count([]) + results.count([len(STILL)]) == len(results)


def test_masked_tiles_are_not_counted_as_unchanged() -> None:
    (*_, before, cut) = verdicts(MOST, map(frame, [*STILL, picture(2)]))
    assert (before.dirty_share, before.is_cut) == (0.0, False)
    assert (cut.dirty_share, cut.is_cut) == (1.0, True)


@pytest.mark.parametrize("boxes", [LEFT_HALF, MOST, MIDDLE, BORDER], ids=["half", "most", "middle", "border"])
def test_a_pan_behind_a_mask_is_no_cut(boxes: Boxes) -> None:
    wide = picture(7, width=2 * WIDTH)
    assert cuts(boxes, [np.ascontiguousarray(wide[:, left : left + WIDTH]) for left in range(0, WIDTH, 16)]) == []


def test_one_part_that_is_replaced_is_no_cut() -> None:
    """Of the four parts around a mask in the middle, something passes in one."""
    passing = STILL[0].copy()
    passing[:32] = picture(9)[:32]
    assert cuts(MIDDLE, [*STILL, passing, passing]) == []


SMALL = {
    "corner": ((0.0, 0.0, 0.1, 0.1),),
    "middle": ((0.45, 0.45, 0.55, 0.55),),
    "clock": ((0.6, 0.02, 0.98, 0.09),),
    "lane": ((0.0, 0.9, 1.0, 1.0),),
    "neighbour": ((0.85, 0.3, 1.0, 1.0),),
}


@pytest.mark.parametrize("boxes", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize(("name", "expected"), [("cuts", [36, 72, 108, 144]), ("demo", [108, 204])])
def test_a_small_mask_hides_no_cut(boxes: Boxes, name: str, expected: list[int]) -> None:
    """Half of some of these shots is plain, and beside a mask in the middle such a half is judged alone."""
    scene = load_scene(name)
    frames = [scene.planes(index) for index in range(scene.frames)]
    assert [index for index, verdict in enumerate(verdicts(boxes, frames)) if verdict.is_cut] == expected


def test_a_part_that_becomes_plain_makes_no_cut_of_one_that_stays() -> None:
    plain = np.full((HEIGHT, WIDTH // 2), 200, np.uint8)
    half_plain = np.concatenate([STILL[0][:, : WIDTH // 2], plain], axis=1)
    assert cuts(((0.45, 0.45, 0.55, 0.55),), [*STILL, *[half_plain] * 2]) == []


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_a_camera_that_moves_is_seen_beside_a_mask(share: float) -> None:
    polygons = () if not share else (box_polygon((1.0 - share, 0.0, 1.0, 1.0)),)
    mask, updater, wide = PictureMask(polygons), TextureUpdater(TextureOptions(masks=polygons)), picture(7, 2 * WIDTH)
    for index, left in enumerate(range(0, 64, 8)):
        planes = mask.apply(frame(np.ascontiguousarray(wide[:, left : left + WIDTH])))
        pending = updater.prepare(planes, None, index)
        updater.commit(pending, FrameStamp(index, 0, 0))
    assert pending.motion is not None
    assert pending.motion.camera_moved
    assert pending.motion.motion is not None
    visible = ~mask.tiles(pending.format.grid)
    np.testing.assert_allclose(np.median(pending.motion.motion.dx_px[visible]), -8, atol=0.5)
    assert not pending.motion.motion.dx_px[~visible].any()


def test_a_frame_without_a_visible_tile_is_no_cut() -> None:
    (_, verdict) = verdicts(ALL, map(frame, [picture(1), picture(2)]))
    assert verdict == CutVerdict()


def test_another_size_has_other_parts() -> None:
    small, large = [flat_planes(96, 128, (grey, 128, 128)) for grey in (50, 90)], list(map(frame, [picture(1)] * 2))
    results = verdicts(LEFT_HALF, [*small, *large, frame(picture(2)), *small])
    assert [index for index, verdict in enumerate(results) if verdict.is_cut] == [4]


def box_of(text: str) -> npt.NDArray[np.bool_]:
    return np.array([[tile == "." for tile in row] for row in text.split()])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".... ....", [TileBox(0, 2, 0, 4)]),
        ("#### #..# #..#", [TileBox(1, 3, 1, 3)]),
        ("##.. .... ....", [TileBox(1, 3, 0, 4)]),
        ("..## #### ##.. ###.", [TileBox(0, 1, 0, 2), TileBox(2, 3, 2, 4)]),
        ("### ###", []),
    ],
)
def test_the_largest_boxes_are_taken_until_enough_is_covered(text: str, expected: list[TileBox]) -> None:
    visible = box_of(text)
    boxes = visible_boxes(visible)
    assert boxes == expected
    assert len(boxes) <= PARTS_MAX
    assert sum(box.area for box in boxes) >= COVERED_SHARE * visible.sum()


def test_there_are_few_boxes_of_a_ragged_mask() -> None:
    ragged = (np.add.outer(np.arange(12), np.arange(16)) % 2).astype(bool)
    assert len(visible_boxes(ragged)) == PARTS_MAX


@pytest.mark.parametrize("sampling", [(1, 1), (2, 2), (1, 2), (1, 4)])
def test_a_box_is_cut_out_of_each_plane(sampling: tuple[int, int]) -> None:
    down, across = sampling
    luma = np.arange(90 * 150, dtype=np.uint32).reshape(90, 150).astype(np.uint8)
    chroma = luma[::down, ::across]
    part = TileBox(1, 3, 2, 5).cut_out(FramePlanes("yuv", (luma, chroma, chroma)))
    np.testing.assert_array_equal(part.planes[0], luma[32:96, 64:160])
    np.testing.assert_array_equal(part.planes[1], chroma[32 // down : 96 // down, 64 // across : 160 // across])
