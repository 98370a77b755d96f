"""Frames allocated on a device: as in host memory, and without a copy to the host.

The device's tensors are `tests.support.device_tensors`; channels are those of the host, so that only allocation
differs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.glance import GlanceOptions
from arr_coc.allocation.on_device.allocator import DeviceAllocator, DeviceFrameAllocation, suits_device
from arr_coc.budget import TokenLimits
from arr_coc.errors import NonFiniteError
from arr_coc.ops.store.base import TextureView
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import texture_array
from arr_coc.types import Feedback, QueryEmbedding, TileMotion
from tests.support.device_tensors import DeviceTensors
from tests.support.motion import pan
from tests.support.video import PictureStream, scenery

ROWS, COLS = 12, 20
OPTIONS = AllocatorOptions(budget=64, levels=True)
CPU = torch.device("cpu")


class DeviceView(TextureView):
    """A view whose channels come from a device."""

    def __init__(self, view: TextureView, place: torch.device) -> None:
        super().__init__(view.stamp, view.grid, view.versions, view)  # type: ignore[arg-type]
        self._place = place

    def texture_array(self) -> tuple[torch.Tensor, torch.Tensor]:
        made = texture_array(self)
        return made.channels.to(self._place), made.entropy.to(self._place)

    def luma(self) -> torch.Tensor:
        raise NotImplementedError


def realiser(query_dim: int = 0) -> RelevanceRealiser:
    torch.manual_seed(0)
    return RelevanceRealiser(query_dim, "model" if query_dim else "").eval()


class Pair:
    """The same frames, told to both allocators."""

    def __init__(self, options: AllocatorOptions, place: torch.device = CPU, query_dim: int = 0) -> None:
        self.place = place
        self.stream = PictureStream()
        self.host = StreamAllocator(options, realiser(query_dim))
        self.device = DeviceAllocator(options, realiser(query_dim))

    def show(self, picture: np.ndarray, motion: TileMotion | None = None) -> tuple[Any, DeviceFrameAllocation]:
        view = self.stream.show(picture)
        there = self.device.allocate(DeviceView(view, self.place), motion)
        assert isinstance(there, DeviceFrameAllocation)
        return self.host.allocate(view, motion), there

    def both(self, call: str, *arguments: Any) -> list[Any]:
        return [getattr(allocator, call)(*arguments) for allocator in (self.host, self.device)]


def assert_equal(one: Any, other: DeviceFrameAllocation) -> None:
    brought = other.on_host()
    torch.testing.assert_close(brought.relevance, one.relevance, atol=2e-5, rtol=0)
    torch.testing.assert_close(brought.scores, one.scores, atol=2e-5, rtol=0)
    assert brought.allocation.regions.tolist() == one.allocation.regions.tolist()
    torch.testing.assert_close(brought.allocation.relevance, one.allocation.relevance, atol=2e-5, rtol=0)
    np.testing.assert_array_equal(brought.levels, one.levels)
    assert brought.jitter_share == pytest.approx(one.jitter_share, abs=1e-6)
    assert brought.change_since == pytest.approx(one.change_since, abs=1e-4)
    assert brought.change_since_look == pytest.approx(one.change_since_look, abs=1e-4)
    assert brought.strategy == one.strategy
    assert (brought.glance_tokens, brought.overview) == (one.glance_tokens, one.overview)
    assert one.tokens <= other.tokens


def feedback_on(frame: Any, row: int, col: int) -> Feedback:
    regions = frame.allocation.regions.numpy().astype(np.int32)
    shift = regions[:, 0]
    there = (regions[:, 1] == row >> shift) & (regions[:, 2] == col >> shift)
    return Feedback(frame.stamp, regions, there.astype(np.float32), 0.5 * there.astype(np.float32))


@pytest.mark.parametrize("strategy", ["auto", "topk", "mixed", "foveated", "grid", "uniform", "random"])
@pytest.mark.parametrize("budget", [5, 64, 500])
def test_a_moving_scene_is_allocated_as_in_host_memory(strategy: str, budget: int) -> None:
    pair = Pair(replace(OPTIONS, strategy=strategy, budget=budget))
    rng, wide = np.random.default_rng(0), scenery(ROWS, COLS + 8)
    for index in range(12):
        picture = wide[:, index * 9 : index * 9 + COLS * 32].astype(np.int16)
        picture = np.clip(picture + rng.integers(-6, 7, picture.shape), 0, 255).astype(np.uint8)
        one, other = pair.show(picture, pan((ROWS, COLS), 0, -9) if index else None)
        assert_equal(one, other)
        if index % 4 == 1:
            pair.both("mark_answered")
        if index % 4 == 2:
            pair.both("apply_feedback", feedback_on(one, 3, 3 + index))
        if index == 6:
            pair.both("mark_looked")


def test_the_limits_of_a_share_hold_on_the_device() -> None:
    one, other = Pair(replace(OPTIONS, budget="auto", limits=TokenLimits(6, 8))).show(scenery(ROWS, COLS))
    assert (one.tokens, other.tokens) == (8, 8)


def test_a_still_scene_settles_and_is_not_scored_again() -> None:
    pair, picture = Pair(OPTIONS), scenery(ROWS, COLS)
    pair.show(scenery(ROWS, COLS, seed=4))
    for _ in range(40):
        one, other = pair.show(picture)
        assert_equal(one, other)
    assert pair.show(picture)[1].relevance is other.relevance


def test_a_question_is_heard_on_the_device() -> None:
    pair = Pair(OPTIONS, query_dim=24)
    rng = np.random.default_rng(0)
    for text in ("what?", "where?"):
        pair.both("set_query", QueryEmbedding(text, rng.normal(size=(4, 24)).astype(np.float32), "model"))
        assert_equal(*pair.show(scenery(ROWS, COLS)))


def test_a_void_is_covered_evenly_and_what_answers_saw_overrules_that() -> None:
    pair = Pair(replace(OPTIONS, strategy="auto"))
    blank = np.full((ROWS * 32, COLS * 32, 3), 90, np.uint8)
    one, other = pair.show(blank)
    assert one.strategy == "grid"
    assert_equal(one, other)
    pair.both("mark_answered")
    pair.both("apply_feedback", feedback_on(one, *one.allocation.regions[0, 1:].tolist()))
    blank[:32, :32] += 3
    one, other = pair.show(blank)
    assert_equal(one, other)


@pytest.mark.parametrize("keep", [True, False])
def test_a_glance_draws_the_tokens_at_once(keep: bool) -> None:
    pair = Pair(replace(OPTIONS, strategy="auto", glance=GlanceOptions(12, keep=keep)))
    view = pair.stream.show(scenery(ROWS, COLS))
    one, other = pair.host.allocate(view), pair.device.allocate(DeviceView(view, CPU))
    assert pair.both("glance_due", 0) == [True, True]
    pair.both("on_glance")
    regions = np.array([[3, row, col] for row in range(2) for col in range(3)], np.int32)
    looked = np.array([0, 1, 0, 0, 0.2, 0], np.float32)
    pair.both("apply_glance", Feedback(one.stamp, regions, looked, looked))
    assert_equal(pair.host.reallocate(view), pair.device.reallocate(DeviceView(view, CPU)))  # type: ignore[arg-type]
    assert pair.both("glance_due", 1) == [False, False]
    assert other.stamp == one.stamp


def test_nothing_is_remembered_across_a_cut() -> None:
    pair = Pair(OPTIONS)
    pair.show(scenery(ROWS, COLS))
    pair.both("mark_answered")
    pair.stream.cut()
    assert_equal(*pair.show(scenery(ROWS, COLS, seed=7), pan((ROWS, COLS), 0, 500)))


@pytest.mark.parametrize("strategy", ["auto", "topk", "mixed", "foveated"])
def test_no_frame_is_copied_to_the_host(strategy: str) -> None:
    """In a moving scene with answers behind it: nothing but the numbers that a trigger asks for."""
    with DeviceTensors() as tensors:
        pair = Pair(replace(OPTIONS, strategy=strategy), tensors.place)
        pair.device = DeviceAllocator(pair.device.options, realiser(), measures_change=False)
        wide = scenery(ROWS, COLS + 8)
        first = pair.show(wide[:, : COLS * 32])[0]
        pair.both("mark_answered")
        pair.both("apply_feedback", feedback_on(first, 4, 4))
        with tensors.counted() as copies:
            frames = []
            for index in range(1, 9):
                motion = pan((ROWS, COLS), 0, -9)
                frames.append(pair.show(wide[:, index * 9 : index * 9 + COLS * 32], motion))
            pair.both("mark_answered")
        assert copies == []
        with tensors.counted() as copies:
            chosen = frames[-1][1].chosen
        assert copies == ["to"], "the regions and their relevance, once they are asked for"
        assert chosen.regions.tolist() == frames[-1][0].allocation.regions.tolist()
        assert_equal(replace(frames[-1][0], change_since=1.0, change_since_look=1.0), frames[-1][1])


def test_a_trigger_on_change_costs_one_copy_of_its_numbers() -> None:
    with DeviceTensors() as tensors:
        pair = Pair(OPTIONS, tensors.place)
        pair.show(scenery(ROWS, COLS))
        pair.both("mark_answered")
        pair.both("mark_looked")
        before = tensors.bytes
        with tensors.counted() as copies:
            pair.show(scenery(ROWS, COLS, seed=1))
        assert copies == ["to"]
        assert tensors.bytes - before == 8


def test_broken_weights_are_found_when_a_frame_is_asked_about() -> None:
    weights = realiser()
    weights.information.gate.weight.data.fill_(float("nan"))
    frame = DeviceAllocator(OPTIONS, weights).allocate(DeviceView(PictureStream().show(scenery(ROWS, COLS)), CPU))
    with pytest.raises(NonFiniteError, match="chosen regions"):
        frame.on_host()


def test_the_hosts_allocator_takes_over_where_the_device_is_gone() -> None:
    with DeviceTensors() as tensors:
        pair = Pair(OPTIONS, tensors.place, query_dim=24)
        question = QueryEmbedding("what?", np.ones((4, 24), np.float32), "model")
        pair.both("set_query", question)
        pair.show(scenery(ROWS, COLS))
        pair.stream.cut()
        view = pair.stream.show(scenery(ROWS, COLS, seed=2))
        with tensors.counted():
            taken = pair.device.allocate(view)
        assert not isinstance(taken, DeviceFrameAllocation)
        assert torch.equal(taken.allocation.regions, pair.host.allocate(view).allocation.regions)
        for call, arguments in (("mark_answered", ()), ("mark_looked", ()), ("set_query", (question,))):
            pair.both(call, *arguments)
        assert pair.both("glance_due", 0) == [False, False]


def test_what_needs_the_host_is_said() -> None:
    for options, channels in (
        (replace(OPTIONS, strategy="fixation"), "core13"),
        (replace(OPTIONS, budget="adaptive"), "core13"),
        (replace(OPTIONS, wide=True), "core13"),
        (OPTIONS, "full40"),
    ):
        assert not suits_device(options, channels)
    assert suits_device(OPTIONS, "core13")
    with pytest.raises(ValueError, match="in host memory only"):
        DeviceAllocator(replace(OPTIONS, budget="adaptive"), realiser())
