"""Live pictures of real runs: of the newest frame with its own map, across restarts, and only while they are wanted."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import cv2
import numpy as np
import pytest

from stream.config import Config, OutputConfig
from stream.events import Answer, Event, FrameReady, Restarted
from stream.protocol.pictures import PictureEndpoints, PictureRequest, picture_fields
from stream.runtime.pictures import encode_jpeg
from stream.runtime.pipeline import Pipeline
from stream.runtime.session import is_supervised
from stream.web.relay import PictureRelay
from tests.support.runs import Seen, config, open_supervised, watch

LOADER = "tests.support.answer_models:FakeAnswerModel"


def with_web(given: Config) -> Config:
    return given.model_copy(update={"output": OutputConfig(web="127.0.0.1:0")})


class Watcher:
    """Asks for the next picture whenever one has come."""

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
    given = with_web(config(restart=True))
    assert is_supervised(given)
    run = open_supervised(given=given)
    assert run.picture_endpoints.page is not None
    watcher = Watcher(run.picture_endpoints.page, 1280, 64)
    before: list[int] = []

    def on_event(seen: Seen, event: Event) -> None:
        if isinstance(event, FrameReady):
            watcher.ask()
        if seen.once("kill", len(watcher.indices()) >= 3 and bool(seen.of(Answer))):
            before.extend(watcher.indices())
            seen.signal("frames")
        if seen.of(Restarted) and seen.once("end", len(watcher.indices()) >= len(before) + 5):
            run.end()

    with closing(watcher):
        seen = watch(run, on_event)
    assert seen.error is None
    indices = watcher.indices()
    assert indices == sorted(indices)  # those of the second process go on from the first one's
    assert len(set(indices)) == len(indices)
    last = watcher.pictures[-1]
    assert (last[1280]["width"], last[1280]["height"], last[1280]["level"]) == (128, 96, 0)
    assert (last[64]["width"], last[64]["level"]) == (64, 1)
    picture = cv2.imdecode(np.frombuffer(last[1280]["picture"], np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    assert picture.shape == (96, 128, 3)


def test_a_picture_comes_with_the_map_of_its_own_frame() -> None:
    given = with_web(Config.model_validate({"source": "scene:demo", "capture": {"size": "128x96", "max_frames": 40}}))
    given = given.model_copy(update={"output": given.output.model_copy(update={"publish": "ipc:///unused"})})
    run = Pipeline(given, model_loader=LOADER)
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
        shown = sizes[1280]
        assert shown["map"] == frames[shown["frame_index"]].map
        assert shown["media_s"] == pytest.approx(frames[shown["frame_index"]].pts_s)


def test_without_a_page_there_is_no_picture_path() -> None:
    run = Pipeline(
        config().model_copy(update={"capture": config().capture.model_copy(update={"max_frames": 2})}),
        model_loader=LOADER,
    )
    events = list(run.run())
    assert run.picture_endpoints == PictureEndpoints()
    assert any(isinstance(event, FrameReady) for event in events)


def test_red_stays_red() -> None:
    red = np.zeros((32, 32, 3), np.uint8)
    red[..., 0] = 255
    shown = cv2.imdecode(np.frombuffer(encode_jpeg(red), np.uint8), cv2.IMREAD_COLOR)
    assert shown is not None
    assert shown[16, 16].tolist() == pytest.approx([0, 0, 254], abs=4)
