"""Detections of an answer: pixels of the source, and notices."""

from __future__ import annotations

import pytest

from arr_coc.qwen.grounding import THINGS_MAX
from arr_coc.types import TileGrid
from stream.answer.detections import BOXES_CUT, BOXES_NOWHERE, DetectionReader
from stream.events import Detection, Detections, Notice
from tests.support.events import answer

BOX = '{"bbox_2d": [100, 200, 300, 400], "label": "cat"}'
GRID = TileGrid.of(120, 190)


@pytest.mark.parametrize(
    ("source_px", "size", "box"),
    [(None, (190, 120), [19.0, 24.0, 57.0, 48.0]), ((1920, 1080), (1920, 1080), [192.0, 216.0, 576.0, 432.0])],
)
def test_boxes_are_in_pixels_of_the_source(
    source_px: tuple[int, int] | None, size: tuple[int, int], box: list[float]
) -> None:
    (event,) = DetectionReader(source_px).read(answer(1.5, f"[{BOX}]", frame_index=7), (1000.0, 1000.0), GRID)
    assert event == Detections(
        frame_index=7,
        pts_s=1.5,
        answer=0,
        width_px=size[0],
        height_px=size[1],
        objects=[Detection(label="cat", box=box)],
    )


def test_a_point_and_a_score_stay() -> None:
    text = '{"point_2d": [500, 500], "label": "x", "score": 0.25}'
    (event,) = DetectionReader((10, 20)).read(answer(0.0, text), (1000.0, 1000.0), GRID)
    assert isinstance(event, Detections)
    assert event.objects == [Detection(label="x", point=[5.0, 10.0], score=0.25)]


def test_an_empty_list_is_an_event_without_objects() -> None:
    (event,) = DetectionReader(None).read(answer(0.0, "[]"), (1000.0, 1000.0), GRID)
    assert isinstance(event, Detections)
    assert event.objects == []


def test_too_many_boxes_are_cut_with_one_notice() -> None:
    reader, text = DetectionReader(None), BOX * (THINGS_MAX + 1)
    event, notice = reader.read(answer(0.0, text), (1000.0, 1000.0), GRID)
    assert isinstance(event, Detections)
    assert len(event.objects) == THINGS_MAX
    assert isinstance(notice, Notice)
    assert (notice.code, notice.message[:35]) == (BOXES_CUT, "an answer has more than 1000 boxes ")
    assert len(reader.read(answer(1.0, text), (1000.0, 1000.0), GRID)) == 1


def test_boxes_of_a_composite_are_reported_once_and_not_placed() -> None:
    reader = DetectionReader(None)
    (notice,) = reader.read(answer(0.0, BOX), None, GRID)
    assert isinstance(notice, Notice)
    assert (notice.code, "api.picture = scaled" in notice.message) == (BOXES_NOWHERE, True)
    assert reader.read(answer(1.0, BOX), None, GRID) == []
