"""Frames allocated on a device: as in host memory, and without a copy to the host.

The device's tensors are `tests.support.device_tensors`; channels are those of the host, so that only allocation
differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator, suits_device
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.glance import GlanceOptions
from arr_coc.allocation.temporal import DEAD_BAND
from arr_coc.budget import TokenLimits
from arr_coc.errors import NonFiniteError
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import texture_array
from arr_coc.texture.store.base import TextureView
from arr_coc.types import Feedback, QueryEmbedding, TileMotion
from tests.support.device_tensors import DeviceTensors
from tests.support.motion import pan
from tests.support.selection import feedback_on
from tests.support.video import PictureStream, scenery

ROWS, COLS = 12, 20
OPTIONS = AllocatorOptions(budget=64)


class DeviceView(TextureView):
    """A view whose channels come from a device."""

    def __init__(self, view: TextureView, place: torch.device) -> None:
        super().__init__(view.stamp, view.grid, view.versions, view)  # type: ignore[arg-type]
        self._place = place

    def texture_array(self) -> tuple[torch.Tensor, torch.Tensor]:
        texture = texture_array(self)
        return texture.channels.to(self._place), texture.entropy.to(self._place)

    def luma(self) -> torch.Tensor:
        """That of the level which the host takes."""
        return torch.from_numpy(cv2.cvtColor(self.read(2), cv2.COLOR_RGB2GRAY)).float().to(self._place)


def realiser(query_dim: int = 0) -> RelevanceRealiser:
    torch.manual_seed(0)
    return RelevanceRealiser(query_dim, "model" if query_dim else "").eval()


@pytest.fixture
def tensors() -> Iterator[DeviceTensors]:
    with DeviceTensors() as tensors:
        yield tensors


class Pair:
    """The same frames, given to an allocator in host memory and to one on a device."""

    def __init__(
        self, options: AllocatorOptions, place: torch.device, query_dim: int = 0, *, measures_change: bool = True
    ) -> None:
        self.place, self.stream = place, PictureStream()
        self.host = StreamAllocator(options, realiser(query_dim))
        device_options = replace(options, on_device=True)
        self.device = StreamAllocator(device_options, realiser(query_dim), measures_change=measures_change)

    def show(self, picture: np.ndarray, motion: TileMotion | None = None) -> tuple[FrameAllocation, FrameAllocation]:
        view = self.stream.show(picture)
        frame = self.device.allocate(DeviceView(view, self.place), motion)
        assert frame.relevance.device == self.place
        return self.host.allocate(view, motion), frame

    def call(self, method: str, *arguments: Any) -> list[Any]:
        return [getattr(allocator, method)(*arguments) for allocator in (self.host, self.device)]


def assert_equal(host: FrameAllocation, device: FrameAllocation, *, change: bool = True) -> None:
    assert host.tokens <= device.tokens, "those that are planned"
    torch.testing.assert_close(device.relevance.cpu(), host.relevance, atol=2e-5, rtol=0)
    torch.testing.assert_close(device.scores.cpu(), host.scores, atol=2e-5, rtol=0)
    assert device.allocation.regions.tolist() == host.allocation.regions.tolist()
    torch.testing.assert_close(device.allocation.relevance, host.allocation.relevance, atol=2e-5, rtol=0)
    np.testing.assert_array_equal(device.levels, host.levels)
    assert device.jitter_share == pytest.approx(host.jitter_share, abs=1e-6)
    if change:
        assert device.change_since == pytest.approx(host.change_since, abs=1e-4)
        assert device.change_since_look == pytest.approx(host.change_since_look, abs=1e-4)
    assert device.strategy == host.strategy
    assert (device.glance_tokens, device.overview, device.tokens) == (host.glance_tokens, host.overview, host.tokens)


@pytest.mark.parametrize("strategy", ["auto", "topk", "mixed", "foveated", "grid", "uniform", "random"])
@pytest.mark.parametrize("budget", [5, 64, 500])
def test_a_moving_scene_is_allocated_as_in_host_memory(tensors: DeviceTensors, strategy: str, budget: int) -> None:
    pair = Pair(replace(OPTIONS, strategy=strategy, budget=budget), tensors.place)
    rng, wide = np.random.default_rng(0), scenery(ROWS, COLS + 8)
    for index in range(12):
        picture = wide[:, index * 9 : index * 9 + COLS * 32].astype(np.int16)
        picture = np.clip(picture + rng.integers(-6, 7, picture.shape), 0, 255).astype(np.uint8)
        host, device = pair.show(picture, pan((ROWS, COLS), 0, -9) if index else None)
        assert_equal(host, device)
        if index % 4 == 1:
            pair.call("mark_answered")
        if index % 4 == 2:
            pair.call("apply_feedback", feedback_on(host, 3, 3 + index))
        if index == 6:
            pair.call("mark_looked")


def test_the_limits_of_a_share_hold_on_the_device(tensors: DeviceTensors) -> None:
    pair = Pair(replace(OPTIONS, budget="auto", limits=TokenLimits(6, 8)), tensors.place)
    host, device = pair.show(scenery(ROWS, COLS))
    assert (host.tokens, device.tokens) == (8, 8)


@pytest.mark.parametrize("strategy", ["auto", "topk", "foveated"])
def test_an_adaptive_budget_follows_relevance_on_the_device(tensors: DeviceTensors, strategy: str) -> None:
    """As many tokens as in host memory, frame by frame, held while they would move by little."""
    options = replace(OPTIONS, strategy=strategy, budget="adaptive", limits=TokenLimits(10, 90))
    assert suits_device(options, "core13")
    pair, wide, budgets = Pair(options, tensors.place), scenery(ROWS, COLS + 8), []
    for index in range(10):
        picture = wide[:, index * 9 : index * 9 + COLS * 32].copy()
        if index < 4:
            picture[:, 3 * 32 :] = 90
        host, device = pair.show(picture, pan((ROWS, COLS), 0, -9) if index else None)
        assert host.inputs.plan.tokens == device.inputs.plan.tokens
        assert_equal(host, device)
        budgets.append(device.inputs.plan.tokens)
        if index == 4:
            pair.call("mark_answered")
            pair.call("apply_feedback", feedback_on(host, 9, 3))
    assert 2 <= len(set(budgets)) < len(budgets), budgets


def test_an_adaptive_budget_costs_one_number_a_frame() -> None:
    with DeviceTensors() as tensors:
        options = replace(OPTIONS, budget="adaptive", limits=TokenLimits(10, 90))
        pair = Pair(options, tensors.place, measures_change=False)
        pair.show(scenery(ROWS, COLS))
        before = tensors.bytes
        with tensors.counted() as copies:
            pair.show(scenery(ROWS, COLS, seed=1))
        assert len(copies) == 1
        assert tensors.bytes - before == 8


def test_a_still_scene_settles_and_is_not_scored_again(tensors: DeviceTensors) -> None:
    pair, picture = Pair(OPTIONS, tensors.place), scenery(ROWS, COLS)
    pair.show(scenery(ROWS, COLS, seed=4))
    for _ in range(40):
        host, device = pair.show(picture)
    # the host settles a little earlier, so that a tile at the edge of the dead band may stay
    torch.testing.assert_close(device.relevance.cpu(), host.relevance, atol=DEAD_BAND + 1e-3, rtol=0)
    assert pair.show(picture)[0].relevance is host.relevance
    assert pair.show(picture)[1].relevance is device.relevance


def test_a_question_is_heard_on_the_device(tensors: DeviceTensors) -> None:
    pair = Pair(OPTIONS, tensors.place, query_dim=24)
    rng = np.random.default_rng(0)
    for text in ("what?", "where?"):
        pair.call("set_query", QueryEmbedding(text, rng.normal(size=(4, 24)).astype(np.float32), "model"))
        assert_equal(*pair.show(scenery(ROWS, COLS)))


def test_a_void_is_covered_evenly_and_what_answers_saw_overrules_that(tensors: DeviceTensors) -> None:
    pair = Pair(replace(OPTIONS, strategy="auto"), tensors.place)
    blank = np.full((ROWS * 32, COLS * 32, 3), 90, np.uint8)
    host, device = pair.show(blank)
    assert host.strategy == "grid"
    assert_equal(host, device)
    pair.call("mark_answered")
    pair.call("apply_feedback", feedback_on(host, *host.allocation.regions[0, 1:].tolist()))
    blank[:32, :32] += 3
    host, device = pair.show(blank)
    assert_equal(host, device)


@pytest.mark.parametrize("keep", [True, False])
def test_a_glance_draws_the_tokens_at_once(tensors: DeviceTensors, keep: bool) -> None:
    pair = Pair(replace(OPTIONS, strategy="auto", glance=GlanceOptions(12, keep=keep)), tensors.place)
    view = pair.stream.show(scenery(ROWS, COLS))
    host, device = pair.host.allocate(view), pair.device.allocate(DeviceView(view, pair.place))
    assert pair.call("glance_due", 0) == [True, True]
    pair.call("on_glance")
    regions = np.array([[3, row, col] for row in range(2) for col in range(3)], np.int32)
    attention = np.array([0, 1, 0, 0, 0.2, 0], np.float32)
    pair.call("apply_glance", Feedback(host.stamp, regions, attention, attention))
    assert_equal(pair.host.reallocate(view), pair.device.reallocate(DeviceView(view, pair.place)))
    assert pair.call("glance_due", 1) == [False, False]
    assert device.stamp == host.stamp


def test_nothing_is_remembered_across_a_cut(tensors: DeviceTensors) -> None:
    pair = Pair(OPTIONS, tensors.place)
    pair.show(scenery(ROWS, COLS))
    pair.call("mark_answered")
    pair.stream.cut()
    assert_equal(*pair.show(scenery(ROWS, COLS, seed=7), pan((ROWS, COLS), 0, 500)))


@pytest.mark.parametrize("strategy", ["auto", "topk", "mixed", "foveated"])
def test_no_frame_is_copied_to_the_host(strategy: str) -> None:
    """In a moving scene with answers behind it: nothing but the numbers that a trigger asks for."""
    with DeviceTensors() as tensors:
        pair = Pair(replace(OPTIONS, strategy=strategy), tensors.place, measures_change=False)
        wide = scenery(ROWS, COLS + 8)
        first = pair.show(wide[:, : COLS * 32])[0]
        pair.call("mark_answered")
        pair.call("apply_feedback", feedback_on(first, 4, 4))
        with tensors.counted() as copies:
            frames = []
            for index in range(1, 9):
                motion = pan((ROWS, COLS), 0, -9)
                frames.append(pair.show(wide[:, index * 9 : index * 9 + COLS * 32], motion))
            pair.call("mark_answered")
        assert copies == []
        with tensors.counted() as copies:
            allocation = frames[-1][1].allocation
        assert copies == ["to"], "the regions and their relevance, once they are asked for"
        assert allocation.regions.tolist() == frames[-1][0].allocation.regions.tolist()
        assert_equal(*frames[-1], change=False)


def test_a_trigger_on_change_costs_one_copy_of_its_numbers() -> None:
    with DeviceTensors() as tensors:
        pair = Pair(OPTIONS, tensors.place)
        pair.show(scenery(ROWS, COLS))
        pair.call("mark_answered")
        pair.call("mark_looked")
        before = tensors.bytes
        with tensors.counted() as copies:
            pair.show(scenery(ROWS, COLS, seed=1))
        assert copies == ["to"]
        assert tensors.bytes - before == 8


def test_broken_weights_are_found_when_a_frame_is_asked_about() -> None:
    weights = realiser()
    weights.information.gate.weight.data.fill_(float("nan"))
    with DeviceTensors() as tensors:
        allocator = StreamAllocator(replace(OPTIONS, on_device=True), weights)
        frame = allocator.allocate(DeviceView(PictureStream().show(scenery(ROWS, COLS)), tensors.place))
        with pytest.raises(NonFiniteError, match="chosen regions"):
            _ = frame.allocation
        adaptive = StreamAllocator(replace(OPTIONS, on_device=True, budget="adaptive"), weights)
        with pytest.raises(NonFiniteError, match="no budget"):
            adaptive.allocate(DeviceView(PictureStream().show(scenery(ROWS, COLS)), tensors.place))


def test_frames_are_allocated_in_host_memory_once_the_device_is_gone() -> None:
    with DeviceTensors() as tensors:
        pair = Pair(OPTIONS, tensors.place, query_dim=24)
        question = QueryEmbedding("what?", np.ones((4, 24), np.float32), "model")
        pair.call("set_query", question)
        pair.show(scenery(ROWS, COLS))
        pair.stream.cut()
        view = pair.stream.show(scenery(ROWS, COLS, seed=2))
        with tensors.counted():
            frame = pair.device.allocate(view)
        assert frame.relevance.is_cpu
        assert torch.equal(frame.allocation.regions, pair.host.allocate(view).allocation.regions)
        for call, arguments in (("mark_answered", ()), ("mark_looked", ()), ("set_query", (question,))):
            pair.call(call, *arguments)
        assert pair.call("glance_due", 0) == [False, False]


def test_options_that_need_the_host_are_reported() -> None:
    for options, channels in (
        (replace(OPTIONS, strategy="fixation"), "core13"),
        (replace(OPTIONS, wide=True), "core13"),
        (OPTIONS, "full40"),
    ):
        assert not suits_device(options, channels)
        assert not StreamAllocator(replace(options, on_device=True), RelevanceRealiser(channels=channels)).on_device
    assert suits_device(OPTIONS, "core13")
