"""Live pictures of real runs: of the newest frame with its own map, across restarts, and only while they are wanted."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from arr_coc.allocation.allocator import StreamAllocator
from stream.config import Config
from stream.errors import TransportError
from stream.events import Answer, Event, FrameReady, Restarted
from stream.extensions.heatmap.sink import HeatmapSink
from stream.extensions.web.relay import PictureRelay
from stream.protocol.inspection import InspectionRequest, PictureToInspect, ReadInspection, read_inspection
from stream.protocol.picture_files import encode_jpeg
from stream.protocol.pictures import PictureEndpoints, PictureExchange, PictureRequest
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.pictures import PictureThread
from stream.runtime.session import is_supervised
from tests.support.pictures import picture_fields
from tests.support.runs import RunRecorder, config, open_supervised, watch

LOADER = "tests.support.answer_models:FakeAnswerModel"


def with_web(base: Config) -> Config:
    return base.with_values({"web.address": "127.0.0.1:0"})


class Watcher:
    """Requests the next picture whenever one has come."""

    def __init__(self, endpoint: str, *widths: int) -> None:
        self.widths = widths
        self.pictures: list[dict[int, dict[str, Any]]] = []
        self._lock = threading.Lock()
        self._relay = PictureRelay(endpoint, self._show)

    def ask(self) -> None:
        self._relay.request(PictureRequest(self.widths))

    def indices(self) -> list[int]:
        with self._lock:
            return [next(iter(sizes.values()))["frame_index"] for sizes in self.pictures]

    def close(self) -> None:
        self._relay.close()

    def _show(self, pictures: dict[int, bytes]) -> None:
        with self._lock:
            self.pictures.append({width: picture_fields(body) for width, body in pictures.items()})
        self.ask()


def test_a_supervised_run_stays_supervised_and_its_pictures_outlive_the_frame_process() -> None:
    run_config = with_web(config(restart=True))
    assert is_supervised(run_config)
    run = open_supervised(settings=run_config)
    assert run.picture_endpoints.page is not None
    watcher = Watcher(run.picture_endpoints.page, 1280, 64)
    before: list[int] = []

    def on_event(recorder: RunRecorder, event: Event) -> None:
        if isinstance(event, FrameReady):
            watcher.ask()
        if recorder.once("kill", len(watcher.indices()) >= 3 and bool(recorder.of(Answer))):
            before.extend(watcher.indices())
            recorder.signal("frames")
        if recorder.of(Restarted) and recorder.once("end", len(watcher.indices()) >= len(before) + 5):
            run.end()

    with closing(watcher):
        watch(run, on_event)
    indices = watcher.indices()
    # Those of the second process go on from the last frame that the first one reported, whose successor may be seen.
    assert indices == sorted(indices)
    last = watcher.pictures[-1]
    assert (last[1280]["width"], last[1280]["height"], last[1280]["level"]) == (128, 96, 0)
    assert (last[64]["width"], last[64]["level"]) == (64, 1)
    picture = cv2.imdecode(np.frombuffer(last[1280]["picture"], np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    assert picture.shape == (96, 128, 3)


def test_a_picture_comes_with_the_map_of_the_same_frame() -> None:
    run_config = with_web(
        Config.model_validate({"source": "scene:demo", "capture": {"size": "128x96", "max_frames": 40}})
    )
    run_config = run_config.with_values({"zeromq.publish": "ipc:///unused"})
    run = run_in_threads(run_config, model_loader=LOADER)
    frames: dict[int, FrameReady] = {}
    watcher: Watcher | None = None
    for event in run.run():
        if watcher is None:
            assert run.picture_endpoints.page is not None
            watcher = Watcher(run.picture_endpoints.page, 1280)
            watcher.ask()
        if isinstance(event, FrameReady):
            frames[event.frame_index] = event
    assert watcher is not None
    watcher.close()
    for sizes in watcher.pictures:
        picture = sizes[1280]
        assert picture["map"] == frames[picture["frame_index"]].map
        assert picture["media_s"] == pytest.approx(frames[picture["frame_index"]].pts_s)


def test_without_a_page_there_is_no_picture_path() -> None:
    run = run_in_threads(
        config().model_copy(update={"capture": config().capture.model_copy(update={"max_frames": 2})}),
        model_loader=LOADER,
    )
    events = list(run.run())
    assert run.picture_endpoints == PictureEndpoints()
    assert any(isinstance(event, FrameReady) for event in events)


def test_red_stays_red() -> None:
    red = np.zeros((32, 32, 3), np.uint8)
    red[..., 0] = 255
    decoded = cv2.imdecode(np.frombuffer(encode_jpeg(red), np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None
    assert decoded[16, 16].tolist() == pytest.approx([0, 0, 254], abs=4)


class Inspector:
    """Requests an inspection, and another one whenever one has come."""

    def __init__(self, endpoint: str, request: InspectionRequest) -> None:
        self.request = request
        self.inspections: list[ReadInspection] = []
        self.refused: list[str] = []
        self._relay = PictureRelay(endpoint, self._show)

    def ask(self) -> None:
        self._relay.request(PictureRequest(inspect=self.request))

    def close(self) -> None:
        self._relay.close()

    def _show(self, pictures: dict[int, bytes]) -> None:
        ((_, message),) = pictures.items()
        try:
            self.inspections.append(read_inspection(message))
        except TransportError as error:
            self.refused.append(str(error))


def test_an_inspection_is_of_one_frame_with_its_own_maps() -> None:
    run_config = with_web(
        Config.model_validate({"source": "scene:demo", "capture": {"size": "128x96", "max_frames": 4000}})
    )
    run_config = run_config.with_values({"zeromq.publish": "ipc:///unused"})
    run = run_in_threads(run_config, model_loader=LOADER)
    frames: dict[int, FrameReady] = {}
    inspector: Inspector | None = None
    for event in run.run():
        if inspector is None:
            assert run.picture_endpoints.microscope is not None
            inspector = Inspector(run.picture_endpoints.microscope, InspectionRequest((0, 5)))
        inspector.ask()
        if isinstance(event, FrameReady):
            frames[event.frame_index] = event
        if any(inspection.head["frame_index"] in frames for inspection in inspector.inspections):
            run.end()
    assert inspector is not None
    inspector.close()
    inspected = [inspection for inspection in inspector.inspections if inspection.head["frame_index"] in frames]
    assert inspected
    for inspection in inspected:
        frame_map = frames[inspection.head["frame_index"]].map
        assert frame_map is not None
        relevance = np.frombuffer(frame_map.relevance, np.uint8).reshape(frame_map.rows, frame_map.cols) / 255
        np.testing.assert_allclose(inspection.maps["relevance, blended"].values, relevance, atol=1 / 255)
        assert inspection.regions.tobytes() == frame_map.regions
        assert {"red", "entropy", "information", "relevance of this frame", "motion, px"} <= set(inspection.maps)
        small = cv2.imdecode(np.frombuffer(inspection.pictures[5], np.uint8), cv2.IMREAD_COLOR)
        assert small is not None
        assert small.shape == (3, 4, 3)
        np.testing.assert_allclose(small[..., 2] / 255, inspection.maps["red"].values, atol=1e-4)


def test_a_picture_is_inspected_beside_a_run_that_goes_on() -> None:
    run = open_supervised(settings=with_web(config(restart=True)))
    assert run.picture_endpoints.microscope is not None
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:32, 32:64] = (250, 0, 0)
    picture = PictureToInspect(1, 64, 96, pixels.tobytes())
    inspector = Inspector(run.picture_endpoints.microscope, InspectionRequest(picture=picture))

    def on_event(recorder: RunRecorder, event: Event) -> None:
        if isinstance(event, FrameReady) and not inspector.inspections:
            inspector.ask()
        if recorder.once("end", bool(inspector.inspections) and bool(recorder.of(Answer))):
            run.end()

    with closing(inspector):
        watch(run, on_event)
    (inspection, *_) = inspector.inspections
    assert (inspection.head["width"], inspection.head["height"]) == (96, 64)
    assert inspection.maps["red"].values[0].tolist() == pytest.approx([0, 250 / 255, 0], abs=1e-4)


def test_bytes_that_are_no_picture_are_answered_with_the_reason() -> None:
    thread = PictureThread.__new__(PictureThread)
    thread.exchange = PictureExchange()
    for reason in ("still loading", "cannot be inspected"):
        with pytest.raises(TransportError, match=reason):
            read_inspection(thread._inspected(PictureToInspect(1, 64, 96, b"short"), (0,)))
        thread.exchange.make_allocator = StreamAllocator


def test_a_live_heat_map_leaves_the_run_supervised_and_outlives_the_frame_process(tmp_path: Path) -> None:
    path = tmp_path / "seen.mp4"
    layers = ("information", "motion")
    run_config = config(restart=True).with_values({"heatmap.file": str(path), "heatmap.layers": layers})
    assert is_supervised(run_config)
    run = open_supervised(settings=run_config)
    assert run.picture_endpoints.heatmap is not None
    sink = HeatmapSink(str(path), lambda: run, layers, run_config.source)

    def drawn() -> int:
        return sink._film.frames

    def on_event(recorder: RunRecorder, event: Event) -> None:
        sink.write(event)
        if recorder.once("kill", drawn() >= 2 and bool(recorder.of(Answer))):
            recorder.keep = drawn()  # type: ignore[attr-defined]
            recorder.signal("frames")
        if recorder.of(Restarted) and recorder.once("end", drawn() >= recorder.keep + 3):  # type: ignore[attr-defined]
            run.end()

    recorder = watch(run, on_event)
    sink.close()
    assert recorder.of(Restarted)
    with av.open(str(path)) as container:
        times = [float(picture.time) for picture in container.decode(video=0)]
    assert len(times) >= 5
    assert times == sorted(times)
