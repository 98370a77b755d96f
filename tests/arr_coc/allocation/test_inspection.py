"""Maps of the frame that an allocator allocated last, and its copy for other pictures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.inspection import inspect_newest
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import texture_array
from arr_coc.types import Feedback, FrameStamp, QueryEmbedding
from tests.arr_coc.allocation.test_on_device import DeviceView
from tests.support.device_tensors import DeviceTensors
from tests.support.video import PictureStream, scenery

ROWS, COLS = 12, 20
OPTIONS = AllocatorOptions(budget=64)


def realiser() -> RelevanceRealiser:
    torch.manual_seed(0)
    return RelevanceRealiser(8, "model").eval()


def question(text: str = "where?") -> QueryEmbedding:
    tokens = np.random.default_rng(len(text)).normal(size=(3, 8)).astype(np.float32)
    return QueryEmbedding(text, tokens, "model")


def test_the_newest_frame_shows_what_it_was_allocated_from() -> None:
    allocator, stream = StreamAllocator(OPTIONS, realiser()), PictureStream()
    allocator.set_query(question())
    view = stream.show(scenery(ROWS, COLS))
    frame = allocator.allocate(view)
    maps = inspect_newest(allocator, view.stamp)
    assert maps is not None
    assert maps.profile == "core13"
    np.testing.assert_array_equal(maps.channels, texture_array(view).channels.numpy())
    np.testing.assert_array_equal(maps.entropy, texture_array(view).entropy.numpy())
    np.testing.assert_array_equal(maps.scores, frame.scores.numpy())
    np.testing.assert_array_equal(maps.weights, frame.weights.numpy())
    np.testing.assert_array_equal(maps.blended, frame.relevance.numpy())
    assert allocator.question == "where?"


def test_an_inspection_keeps_its_numbers_while_frames_go_on() -> None:
    allocator, stream = StreamAllocator(OPTIONS), PictureStream()
    view = stream.show(scenery(ROWS, COLS))
    allocator.allocate(view)
    maps = inspect_newest(allocator, view.stamp)
    assert maps is not None
    before = [part.copy() for part in (maps.channels, maps.scores, maps.frame_relevance, maps.blended)]
    for shade in (0, 255):
        allocator.allocate(stream.show(np.full((ROWS * 32, COLS * 32, 3), shade, np.uint8)))
    for copy, part in zip(before, (maps.channels, maps.scores, maps.frame_relevance, maps.blended), strict=True):
        np.testing.assert_array_equal(copy, part)


def test_only_the_newest_frame_can_be_inspected() -> None:
    allocator, stream = StreamAllocator(OPTIONS), PictureStream()
    assert inspect_newest(allocator, FrameStamp(0, 0, 0)) is None
    view = stream.show(scenery(ROWS, COLS))
    allocator.allocate(view)
    assert inspect_newest(allocator, replace(view.stamp, frame_index=7)) is None


def test_feedback_is_shown() -> None:
    allocator, stream = StreamAllocator(OPTIONS), PictureStream()
    frame = allocator.allocate(stream.show(scenery(ROWS, COLS)))
    allocator.mark_answered()
    regions = frame.allocation.regions.numpy().astype(np.int32)
    attention = np.zeros(len(regions), np.float32)
    attention[3] = 1.0
    allocator.apply_feedback(Feedback(frame.stamp, regions, attention, np.zeros(len(regions), np.float32)))
    view = stream.show(scenery(ROWS, COLS))
    allocator.allocate(view)
    maps = inspect_newest(allocator, view.stamp)
    assert maps is not None
    assert maps.prior is not None
    assert maps.prior.shape == (3, ROWS, COLS)
    assert maps.prior[0].max() > 0.5


@pytest.mark.parametrize("profile", ["full40", "full40+text"])
def test_channels_of_the_past_are_shown_as_the_scorers_read_them(profile: str) -> None:
    allocator, stream = StreamAllocator(replace(OPTIONS, channels=profile)), PictureStream()
    for _ in range(2):
        view = stream.show(scenery(ROWS, COLS))
        allocator.allocate(view)
    maps = inspect_newest(allocator, view.stamp)
    assert maps is not None
    assert maps.channels.shape == (40, ROWS, COLS)
    assert maps.channels[34].max() > 0, "the relevance of the frame before"


def test_a_device_shows_the_same() -> None:
    host, device = (StreamAllocator(replace(OPTIONS, on_device=on_device), realiser()) for on_device in (False, True))
    view = PictureStream().show(scenery(ROWS, COLS))
    for allocator in (host, device):
        allocator.set_query(question())
    assert inspect_newest(device, view.stamp) is None
    host.allocate(view)
    with DeviceTensors() as tensors:
        device.allocate(DeviceView(view, tensors.place))
        host_maps, device_maps = inspect_newest(host, view.stamp), inspect_newest(device, view.stamp)
    assert host_maps is not None
    assert device_maps is not None
    for name in ("channels", "entropy", "scores", "weights", "frame_relevance", "blended"):
        np.testing.assert_allclose(getattr(device_maps, name), getattr(host_maps, name), atol=1e-4, err_msg=name)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_copy_for_another_thread_chooses_alike_and_disturbs_nothing(on_device: bool) -> None:
    allocator = StreamAllocator(replace(OPTIONS, on_device=on_device), realiser())
    allocator.set_query(question())
    copy = allocator.copy_for_thread()
    picture = scenery(ROWS, COLS)
    fresh = StreamAllocator(OPTIONS, realiser())
    fresh.set_query(question())
    expected = fresh.allocate(PictureStream().show(picture))
    assert not copy.on_device
    frame = copy.allocate(PictureStream().show(picture))
    assert frame.allocation.regions.equal(expected.allocation.regions)
    assert frame.scores.allclose(expected.scores)
    assert copy.question == "where?"
    assert inspect_newest(allocator, frame.stamp) is None
