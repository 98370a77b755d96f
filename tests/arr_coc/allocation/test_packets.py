"""The allocation that shows everything."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.packets import SCORES, all_tokens, explain, frame_packet_from, packet_from, weights_of
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.texture.regions import region_mean
from arr_coc.types import FramePlanes, FrameStamp
from arr_coc.video.texture_updater import TextureUpdater
from stream.config import AnswerConfig
from stream.events import Answer, AskedPicture, Explanation, FrameReady
from stream.extensions.mqtt.section import MqttSection
from stream.extensions.why.section import WhySection
from stream.extensions.why.sink import ExplanationSink
from stream.sinks.output_file import JsonlSink
from tests.stream.runtime.test_pipeline import configured, run
from tests.support.events import answer
from tests.support.selection import frame_of
from tests.support.video import PictureStream, make_video, moving_square, scenery


def test_all_tokens_cover_every_tile_once() -> None:
    updater = TextureUpdater()
    updater.process(FramePlanes("rgb", (np.zeros((70, 100, 3), np.uint8),)), FrameStamp(0, 0, 0))
    with updater.lease() as view:
        frame = all_tokens(view)
    tiles = [(0, row, col) for row in range(3) for col in range(4)]
    assert [tuple(region) for region in frame.allocation.regions.tolist()] == tiles
    assert frame.allocation.tokens == 12
    assert frame.levels.shape == (3, 4)


@pytest.mark.parametrize("strategy", ["foveated", "mixed"])
def test_a_token_packet_is_complete_in_itself(strategy: str) -> None:
    view = PictureStream().show(scenery(9, 13))
    frame = StreamAllocator(AllocatorOptions(strategy=strategy, budget=40)).allocate(view)
    packet = packet_from(view, frame)
    assert packet.stamp == view.stamp
    assert packet.grid == view.grid
    assert packet.regions.dtype == np.int32
    assert (packet.regions == frame.allocation.regions.numpy()).all()
    assert packet.pixels.shape == (len(packet.regions), 3, 32, 32)
    for (level, row, col), pixels in zip(packet.regions.tolist(), packet.pixels, strict=True):
        texels = view.read(level)[row * 32 : row * 32 + 32, col * 32 : col * 32 + 32].transpose(2, 0, 1)
        assert (pixels[:, : texels.shape[1], : texels.shape[2]] == texels).all()
    view.release()
    assert packet.pixels.any()


def test_a_frame_packet_lends_the_frame() -> None:
    view = PictureStream().show(scenery(5, 6))
    frame = StreamAllocator().allocate(view)
    packet = frame_packet_from(view, frame)
    assert np.shares_memory(packet.image, view.read(0))
    assert packet.relevance.shape == (5, 6)
    assert packet.relevance.dtype == np.float32
    assert (packet.regions == frame.allocation.regions.numpy()).all()


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (192, 256, 3), dtype=np.uint8)


@pytest.fixture
def frame() -> FrameAllocation:
    """The second of two different frames, in coarse tokens and fine ones; as of a trained allocator, without a gaze."""
    allocator = StreamAllocator(AllocatorOptions(strategy="foveated", budget=20), RelevanceRealiser(trained_for="m"))
    stream, smooth = PictureStream(), np.full((192, 256, 3), 90, np.uint8)
    allocator.allocate(stream.show(smooth))
    half = smooth.copy()
    half[:96, :96] = picture(1)[:96, :96]
    return allocator.allocate(stream.show(half))


def test_scores_weights_and_memory_add_up_to_the_relevance(frame: FrameAllocation) -> None:
    regions, weights, reasons = frame.allocation.regions.numpy(), weights_of(frame), explain(frame)
    assert [(reason.level, reason.row, reason.col) for reason in reasons] == [tuple(region) for region in regions]
    assert len({reason.level for reason in reasons}) > 1
    assert sum(weights.values()) == pytest.approx(1)
    for reason, relevance in zip(reasons, region_mean(regions, frame.relevance.numpy()), strict=True):
        assert reason.now == pytest.approx(sum(weights[name] * reason.scores[name] for name in SCORES), abs=1e-5)
        assert reason.now + reason.memory == pytest.approx(reason.relevance, abs=1e-6)
        assert reason.relevance == pytest.approx(float(relevance))
        assert sum(reason.shares.values()) == pytest.approx(1)
        for name in SCORES:
            assert reason.shares[name] * reason.now == pytest.approx(weights[name] * reason.scores[name], abs=1e-5)
    assert any(abs(reason.memory) > 1e-3 for reason in reasons)


def test_ranks_go_by_relevance_and_of_equals_by_place(frame: FrameAllocation) -> None:
    reasons = explain(frame)
    assert sorted(reason.rank for reason in reasons) == list(range(1, len(reasons) + 1))
    order = [reason.relevance for reason in sorted(reasons, key=lambda reason: reason.rank)]
    assert order == sorted(order, reverse=True)
    flat = dataclasses.replace(frame, relevance=torch.full_like(frame.relevance, 0.5))
    assert [reason.rank for reason in explain(flat)] == list(range(1, len(reasons) + 1))


def test_a_tile_has_the_values_of_its_place() -> None:
    regions = torch.tensor([[0, 0, 1], [0, 1, 0]])
    scores = torch.arange(12.0).reshape(3, 2, 2) / 12
    frame = frame_of(regions, torch.tensor([[0.0, 0.2], [0.9, 0.0]]))
    frame.scores, frame.weights = scores, torch.tensor([1.0, 0.5, 0.5])
    first, second = explain(frame)
    assert (first.rank, second.rank) == (2, 1)
    assert first.scores == pytest.approx({"information": 1 / 12, "perspective": 5 / 12, "participation": 9 / 12})
    assert first.now == pytest.approx(0.5 / 12 + 0.25 * 5 / 12 + 0.25 * 9 / 12)
    assert second.relevance == pytest.approx(0.9)


def test_a_frame_that_is_shown_whole_has_no_reasons_but_that() -> None:
    view = PictureStream().show(picture(0))
    reasons = explain(all_tokens(view))
    assert len(reasons) == view.grid.tiles
    assert weights_of(all_tokens(view)) == dict.fromkeys(SCORES, 0.0)
    assert {reason.now for reason in reasons} == {0.0}
    assert {sum(reason.shares.values()) for reason in reasons} == {0.0}


def test_each_frame_that_is_answered_about_is_reported_with_its_reasons(tmp_path: Path) -> None:
    video = str(make_video(tmp_path / "a.mp4", list(moving_square(12, 192, 128)), 10))
    plain = run(configured(video, answer=AnswerConfig(every_s=0.5)))
    assert plain.of(Explanation) == []
    result = run(configured(video, answer=AnswerConfig(every_s=0.5), why=WhySection(file=str(tmp_path / "w.jsonl"))))
    answers, explanations = result.of(Answer), result.of(Explanation)
    assert [event.frame_index for event in explanations] == [event.frame_index for event in answers] == [0, 5, 10, 11]
    tokens = {frame.frame_index: frame.tokens for frame in result.of(FrameReady)}
    assert [len(event.tokens) for event in explanations] == [tokens[event.frame_index] for event in explanations]
    assert result.events.index(explanations[1]) < result.events.index(answers[1])
    assert [event.text for event in plain.of(Answer)] == [event.text for event in answers]
    video_file = tmp_path / "a.mp4"
    video_file.unlink()


def test_each_frame_that_is_asked_about_is_sent_as_a_picture_where_an_output_wants_it(tmp_path: Path) -> None:
    video = str(make_video(tmp_path / "a.mp4", list(moving_square(12, 192, 128)), 10))
    often = AnswerConfig(every_s=0.5)
    assert run(configured(video, answer=often)).of(AskedPicture) == []
    assert run(configured(video, answer=often, mqtt=MqttSection(url="mqtt://x", picture=False))).of(AskedPicture) == []
    result = run(configured(video, answer=often, mqtt=MqttSection(url="mqtt://x")))
    pictures = result.of(AskedPicture)
    assert [event.frame_index for event in pictures] == [0, 5, 10, 11]
    assert [event.frame_index for event in result.of(Answer)] == [0, 5, 10, 11]
    image = cv2.imdecode(np.frombuffer(pictures[1].jpeg, np.uint8), cv2.IMREAD_COLOR)
    frame = list(moving_square(12, 192, 128))[5]
    assert image.shape == (128, 192, 3)
    assert np.abs(image.mean() - frame.mean()) < 5
    for picture, reply in zip(pictures, result.of(Answer), strict=True):
        assert picture.map is not None
        assert picture.level == 0
        assert (picture.map.rows, picture.map.cols, len(picture.map.relevance)) == (4, 6, 24)
        assert len(picture.map.regions) // 6 == reply.tokens_used


def test_a_wide_picture_has_its_level(tmp_path: Path) -> None:
    video = str(make_video(tmp_path / "a.mp4", list(moving_square(2, 1280, 64)), 10))
    (picture,) = run(configured(video, mqtt=MqttSection(url="mqtt://x"))).of(AskedPicture)[:1]
    image = cv2.imdecode(np.frombuffer(picture.jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert (picture.level, image.shape) == (1, (32, 640, 3))
    assert picture.map is not None
    assert picture.map.cols == 40


def test_the_file_holds_reasons_only_and_captions_none(tmp_path: Path, frame: FrameAllocation) -> None:
    explanation = Explanation(
        frame_index=3, pts_s=0.1, strategy="foveated", weights=weights_of(frame), tokens=explain(frame)
    )
    for sink in (ExplanationSink(str(tmp_path / "why.jsonl")), JsonlSink(str(tmp_path / "captions.jsonl"))):
        for event in (explanation, answer(0.1, "a")):
            sink.write(event)
        sink.close()
    (line,) = (tmp_path / "why.jsonl").read_text("utf-8").splitlines()
    explained = json.loads(line)
    assert (explained["type"], explained["frame_index"], set(explained["weights"])) == ("why", 3, set(SCORES))
    assert set(explained["tokens"][0]) == {field.name for field in dataclasses.fields(explain(frame)[0])}
    assert len(line) < 330 * len(explained["tokens"])
    (caption,) = (tmp_path / "captions.jsonl").read_text("utf-8").splitlines()
    assert json.loads(caption)["type"] == "answer"
