"""A frame's way on a device, from its planes to the model's input: copies to the host are counted.

The driver is `tests.cuda_on_cpu`, the device's tensors are `tests.support.device_tensors`; both count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.packets import overview_packet, packet_from
from arr_coc.backends.cuda import device as cuda_device
from arr_coc.backends.cuda import view as cuda_view
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.types import Feedback, FramePlanes, FrameStamp
from arr_coc.video.texture_updater import TextureOptions, TextureUpdater
from stream.protocol.codec import glance_message, token_message, token_packet
from stream.protocol.device_pixels import LocalPixels
from tests.cuda_on_cpu.machine import CpuMachine
from tests.support.device_tensors import DeviceTensors, values_of
from tests.support.events import QUESTION
from tests.support.video import scenery

ROWS, COLS, STEP_PX = 4, 8, 8
OPTIONS = AllocatorOptions(budget=12, on_device=True)
COPY = "cuMemcpyDtoHAsync"


@pytest.fixture
def tensors(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceTensors]:
    """A CUDA device whose tensors no array can be made of."""
    place = dataclasses.replace(cuda_on_cpu.device, place=DeviceTensors.place)
    monkeypatch.setattr(cuda_device, "_opened", lambda index: place)
    for made_once in (cuda_view.shape_scales, cuda_view.normalised):
        made_once.cache_clear()
    with DeviceTensors() as tensors:
        yield tensors


def planes(index: int) -> FramePlanes:
    """A camera that pans over a scene."""
    wide = scenery(ROWS, COLS + 8)
    return FramePlanes("rgb", (np.ascontiguousarray(wide[:, index * STEP_PX : index * STEP_PX + COLS * 32]),))


def stamp(index: int) -> FrameStamp:
    return FrameStamp(index, index * 33_000_000, 0)


def shown(updater: TextureUpdater, allocator: StreamAllocator, index: int) -> FrameAllocation:
    update = updater.process(planes(index), stamp(index))
    with updater.lease() as view:
        frame = allocator.allocate(view, update.motion)
    assert frame.relevance.device == DeviceTensors.place
    return frame


def test_frames_cost_no_copy_to_the_host_and_an_answer_costs_its_regions(
    cuda_on_cpu: CpuMachine, tensors: DeviceTensors
) -> None:
    updater, pixels = TextureUpdater(TextureOptions(backend="cuda", cuts=False)), LocalPixels()
    allocator = StreamAllocator(OPTIONS, RelevanceRealiser(), measures_change=False)
    frame = shown(updater, allocator, 0)
    for answer in range(2):
        with cuda_on_cpu.calls() as calls, tensors.counted() as copies:
            for index in range(1 + 4 * answer, 5 + 4 * answer):
                frame = shown(updater, allocator, index)
        assert "cuLaunchKernel upload_tiles" in calls
        assert "cuLaunchKernel tile_channels" in calls
        assert COPY not in calls
        assert copies == []
        with cuda_on_cpu.calls() as calls, tensors.counted() as copies:
            with updater.lease() as view:
                packet = packet_from(view, frame)
            place = pixels.put(packet.pixels)  # type: ignore[arg-type]
            message, arrays = token_message(answer, 1, packet, QUESTION, pixels_at=place)
            arrived = token_packet(message, [array.tobytes() for array in arrays], pixels.take)
        assert COPY not in calls
        assert copies == ["to"], "20 bytes a token: its region, relevance, and whether it is one"
        assert isinstance(arrived.pixels, torch.Tensor)
        assert arrived.pixels.device == tensors.place
        with updater.lease() as view:
            np.testing.assert_array_equal(values_of(arrived.pixels).numpy(), view.gather(arrived.regions))
        attention = np.linspace(1, 0, len(arrived.regions), dtype=np.float32)
        allocator.mark_answered()
        allocator.apply_feedback(Feedback(frame.stamp, arrived.regions, attention, attention))
    updater.close()


def test_a_glance_costs_no_copy(cuda_on_cpu: CpuMachine, tensors: DeviceTensors) -> None:
    updater, pixels = TextureUpdater(TextureOptions(backend="cuda")), LocalPixels()
    updater.process(planes(0), stamp(0))
    with cuda_on_cpu.calls() as calls, tensors.counted() as copies:
        with updater.lease() as view:
            packet = overview_packet(view, 8)
        message, arrays = glance_message(0, 1, packet, "what?", pixels_at=pixels.put(packet.pixels))  # type: ignore[arg-type]
        arrived = token_packet(message, [array.tobytes() for array in arrays], pixels.take)
    assert COPY not in calls
    assert copies == []
    assert arrived.is_glance
    updater.close()


def test_the_host_copies_maps_and_pixels_for_each_frame(cuda_on_cpu: CpuMachine, tensors: DeviceTensors) -> None:
    """The counters, if a frame of a device's texture is allocated in host memory."""
    updater = TextureUpdater(TextureOptions(backend="cuda", cuts=False))
    allocator = StreamAllocator(dataclasses.replace(OPTIONS, strategy="fixation"), RelevanceRealiser())
    for index in range(2):
        update = updater.process(planes(index), stamp(index))
        with tensors.counted() as copies, updater.lease() as view:
            allocator.allocate(view, update.motion)
        assert copies
    with cuda_on_cpu.calls() as calls, updater.lease() as view:
        view.read(1)
    assert COPY in calls
    updater.close()
