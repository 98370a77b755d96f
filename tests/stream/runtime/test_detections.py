"""Boxes of a scripted model in pixels of the source, however its frames are scaled, padded and turned for the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from stream.config import AnswerConfig, CaptureConfig, OutputConfig
from stream.events import Answer, AskedPicture, Detection, Detections, encode_event
from stream.extensions.journal.journal import journal_for
from stream.runtime.frame_stages import run_in_threads
from tests.stream.runtime.test_pipeline import configured, run
from tests.support.sections import opened_sinks
from tests.support.video import make_video

WIDTH, HEIGHT = 150, 100
THING = (30, 20, 90, 60)
"""Box of the bright thing in the pictures of the source."""


def pictures(count: int = 3) -> list[np.ndarray]:
    image = np.full((HEIGHT, WIDTH, 3), 40, np.uint8)
    image[THING[1] : THING[3], THING[0] : THING[2]] = 220
    return [image] * count


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_video(tmp_path_factory.mktemp("video") / "thing.mp4", pictures(), 10))


def query_for(box: Sequence[float], **fields: object) -> AnswerConfig:
    return AnswerConfig(query=json.dumps([{"bbox_2d": list(box), "label": "thing", **fields}]), every_s=10.0)


@pytest.mark.parametrize(
    ("capture", "model", "picture"),
    [
        # the picture that the model is given: the padded frame of 160x128, in thousandths or tiles of 28 pixels
        ({}, "LocatingAnswerModel", (160, 128, 1000, 1000)),
        ({}, "PixelAnswerModel", (160, 128, 140, 112)),
        ({"size": "75x50"}, "LocatingAnswerModel", (96 * 2, 64 * 2, 1000, 1000)),
        ({"fit": "resize"}, "PixelAnswerModel", (150, 100, 320 * 28 / 32, 224 * 28 / 32)),
        ({"max_tiles": 6}, "LocatingAnswerModel", (150, 100, 1000, 1000)),
    ],
)
def test_a_box_is_where_the_thing_is_in_the_source(
    video: str, capture: dict[str, object], model: str, picture: tuple[float, float, float, float]
) -> None:
    """`picture`: pixels of the source that the model's picture is wide and high, and its own coordinates of that."""
    scale = picture[2] / picture[0], picture[3] / picture[1]
    answered = query_for([edge * side for edge, side in zip(THING, (*scale, *scale), strict=True)])
    result = run(configured(video, answer=answered, capture=CaptureConfig(**capture)), model)  # type: ignore[arg-type]
    detections, *_ = result.of(Detections)
    assert (detections.width_px, detections.height_px) == (WIDTH, HEIGHT)
    (thing,) = detections.objects
    assert thing.box == pytest.approx(THING, abs=0.05)
    order = [type(event) for event in result.events if isinstance(event, (Answer, Detections))]
    assert order[:2] == [Answer, Detections]


def test_a_turned_source_has_boxes_in_its_upright_picture(tmp_path: Path) -> None:
    path = make_video(tmp_path / "phone.mp4", pictures(), 10, rotation=-90)
    detections, *_ = run(configured(str(path), answer=query_for([0, 0, 1000, 1000])), "LocatingAnswerModel").of(
        Detections
    )
    assert (detections.width_px, detections.height_px) == (HEIGHT, WIDTH)
    assert detections.objects == [Detection(label="thing", box=[0.0, 0.0, 100.0, 150.0])]


def test_the_asked_picture_of_the_frame_shows_the_thing_in_its_box(video: str, tmp_path: Path) -> None:
    import cv2

    output = OutputConfig(paths=(str(tmp_path / "a.mcap"),))
    box = [edge * 1000 / side for edge, side in zip(THING, (160, 128, 160, 128), strict=True)]
    result = run(configured(video, answer=query_for(box), output=output), "LocatingAnswerModel")
    detections, *_ = result.of(Detections)
    picture = next(event for event in result.of(AskedPicture) if event.frame_index == detections.frame_index)
    image = cv2.imdecode(np.frombuffer(picture.jpeg, np.uint8), cv2.IMREAD_GRAYSCALE)
    assert (detections.width_px, detections.height_px) == image.shape[::-1]
    (thing,) = detections.objects
    assert thing.box is not None
    left, top, right, bottom = map(round, thing.box)
    assert image[top + 2 : bottom - 2, left + 2 : right - 2].min() > 150
    outside = image.copy()
    outside[top - 2 : bottom + 2, left - 2 : right + 2] = 0
    assert outside.max() < 100


def test_a_run_without_boxes_has_no_detections(video: str) -> None:
    assert run(configured(video)).of(Detections) == []


def test_a_continued_run_has_the_boxes_of_the_first(video: str, tmp_path: Path) -> None:
    config = configured(
        video, answer=query_for([0, 0, 500, 500]), output=OutputConfig(paths=(str(tmp_path / "a.jsonl"),))
    )
    lines = []
    for resume in (False, True):
        journal = journal_for(config, resume=resume)
        assert journal is not None
        journal.open()
        assert journal.earlier_answers == (2 if resume else 0)
        model = "tests.support.answer_models:LocatingAnswerModel"
        events = list(run_in_threads(config, model_loader=model, continuation=journal).run())
        journal.close(is_finished=False)
        lines.append([encode_event(event) for event in events if isinstance(event, Detections)])
    assert lines[0] == lines[1]
    assert len(lines[0]) == 2


def test_lines_and_captions_of_a_run_have_the_boxes(video: str, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"a{suffix}") for suffix in (".jsonl", ".vtt", ".srt")]
    config = configured(video, answer=query_for([0, 0, 500, 500], score=0.5), output=OutputConfig(paths=tuple(paths)))
    result = run(config, "LocatingAnswerModel")
    sinks = opened_sinks(config)
    for event in result.events:
        for sink in sinks:
            sink.write(event)
    for sink in sinks:
        sink.close()
    lines = [json.loads(line) for line in Path(paths[0]).read_text().splitlines()]
    detections, *_ = [line for line in lines if line["type"] == "detections"]
    assert detections["objects"] == [{"label": "thing", "box": [0.0, 0.0, 80.0, 64.0], "score": 0.5}]
    for path in paths[1:]:
        cues = Path(path).read_text()
        assert "\nthing\n" in cues
        assert "bbox_2d" not in cues
