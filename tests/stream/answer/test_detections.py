"""Detections of an answer: pixels of the source, and notices."""

from __future__ import annotations

import pytest

from arr_coc.qwen.grounding import THINGS_MAX
from arr_coc.types import FrameStamp, Question, TileGrid
from stream.answer.detections import BOXES_CUT, BOXES_NOWHERE, DetectionReader
from stream.answer.filters import FinishedAnswer
from stream.events import Detection, Detections, Event, Notice
from tests.support.events import answer, make_answer_reply, make_token_packet

BOX = '{"bbox_2d": [100, 200, 300, 400], "label": "cat"}'
GRID = TileGrid.of(120, 190)


def read(reader: DetectionReader, text: str, *, extent: tuple[float, float] | None = (1000.0, 1000.0)) -> list[Event]:
    """Events after an answer with this text."""
    packet = make_token_packet(FrameStamp(7, 0, 0, 0), GRID, tokens=1)
    reply = make_answer_reply(0, text, extent=extent)
    finished = FinishedAnswer(Question("where?"), packet, reply, answer(1.5, text, frame_index=7))
    reader.on_answer(finished)
    return finished.events


@pytest.mark.parametrize(
    ("source_px", "size", "box"),
    [(None, (190, 120), [19.0, 24.0, 57.0, 48.0]), ((1920, 1080), (1920, 1080), [192.0, 216.0, 576.0, 432.0])],
)
def test_boxes_are_in_pixels_of_the_source(
    source_px: tuple[int, int] | None, size: tuple[int, int], box: list[float]
) -> None:
    (event,) = read(DetectionReader(source_px), f"[{BOX}]")
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
    (event,) = read(DetectionReader((10, 20)), text)
    assert isinstance(event, Detections)
    assert event.objects == [Detection(label="x", point=[5.0, 10.0], score=0.25)]


def test_an_empty_list_is_an_event_without_objects() -> None:
    (event,) = read(DetectionReader(None), "[]")
    assert isinstance(event, Detections)
    assert event.objects == []


def test_too_many_boxes_are_cut_with_one_notice() -> None:
    reader, text = DetectionReader(None), BOX * (THINGS_MAX + 1)
    event, notice = read(reader, text)
    assert isinstance(event, Detections)
    assert len(event.objects) == THINGS_MAX
    assert isinstance(notice, Notice)
    assert (notice.code, notice.message[:35]) == (BOXES_CUT, "an answer has more than 1000 boxes ")
    assert len(read(reader, text)) == 1


def test_boxes_of_a_composite_are_reported_once_and_not_placed() -> None:
    reader = DetectionReader(None)
    (notice,) = read(reader, BOX, extent=None)
    assert isinstance(notice, Notice)
    assert (notice.code, "api.picture = scaled" in notice.message) == (BOXES_NOWHERE, True)
    assert read(reader, BOX, extent=None) == []
