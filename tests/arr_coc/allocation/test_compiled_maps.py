"""Maps over time by the compiled kernel: those of the reference, whatever moves."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.allocation.structure import CLEAR, map_structure, picture_structure
from arr_coc.allocation.temporal import ChangeMeter, ExplorationTracker, FeedbackPrior, TemporalBlend
from arr_coc.allocation.warping import CompiledMaps, MotionHistory, Warp, WholeTileSteps
from arr_coc.relevance.kernel import kernel_path, load_kernel
from arr_coc.texture.kernels import SETTING, ArrayPool
from arr_coc.types import Feedback, FrameStamp, TileMotion, TileVersions

pytestmark = pytest.mark.skipif(
    not kernel_path().is_file() and os.environ.get("CI") != "true", reason="the compiled kernel of scores was not built"
)
FRAME_NS = 33_366_667
grids = st.sampled_from([(1, 1), (1, 7), (2, 2), (3, 40), (9, 16), (17, 30)])
seeds = st.integers(0, 2**32 - 1)


def compiled_maps() -> CompiledMaps:
    return CompiledMaps(load_kernel(kernel_path()), ArrayPool())


def motion_of(rng: np.random.Generator, shape: tuple[int, int]) -> TileMotion:
    """Motion of a frame: of the camera or not, of things that cross it, of some tiles at random."""
    moves = np.zeros((2, *shape), np.float32)
    if rng.random() < 0.4:
        moves += rng.choice([0.5, 4, 32, 900]) * rng.normal(size=(2, 1, 1))
    for _ in range(rng.integers(0, 3)):
        (top, left), (down, right) = rng.integers(0, shape, 2), rng.integers(1, 6, 2)
        moves[:, top : top + down, left : left + right] = rng.normal(0, 12, (2, 1, 1))
    tiles = rng.random(shape) < 0.05
    moves[:, tiles] = rng.choice([1, 16, 32], (2, int(tiles.sum()))) * rng.choice([-1, 1])
    return TileMotion(moves[0], moves[1], np.ones(shape, np.float32))


def random(rng: np.random.Generator, shape: tuple[int, ...], draw: Any = None) -> torch.Tensor:
    return torch.from_numpy((draw or rng.random)(size=shape).astype(np.float32))


def same(actual: Any, expected: Any, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


@given(shape=grids, seed=seeds)
def test_warps_of_one_frame_and_of_many(shape: tuple[int, int], seed: int) -> None:
    rng, maps = np.random.default_rng(seed), compiled_maps()
    histories, all_steps = (MotionHistory(0), MotionHistory(0)), (WholeTileSteps(), WholeTileSteps())
    for frame in range(1, 7):
        motion = motion_of(rng, shape)
        pair = Warp.of(motion), Warp.of(motion, maps)
        for warp, history in zip(pair, histories, strict=True):
            history.add(frame, warp)
        whole_steps = [steps.step(warp) for steps, warp in zip(all_steps, pair, strict=True)]
        assert (whole_steps[0] is None) == (whole_steps[1] is None)
        if whole_steps[0] is not None and whole_steps[1] is not None:
            np.testing.assert_array_equal(whole_steps[1].origin, whole_steps[0].origin)
            np.testing.assert_array_equal(whole_steps[1].newest, whole_steps[0].newest)
        since = [history.since(int(seed % 3), shape) for history in histories]
        assert since[0] is not None
        assert since[1] is not None
        same(since[1].origin, since[0].origin, 1e-4)
        for kind in (np.bool_, np.int8, np.int64, np.float32, np.float64):
            kinds = torch.from_numpy(rng.integers(0, 100, shape).astype(kind))
            nearest = replace(since[0], maps=maps).nearest(kinds, 1)
            assert nearest.dtype == kinds.dtype
            assert nearest.equal(since[0].nearest(kinds, 1))


@given(shape=grids, seed=seeds)
def test_blending(shape: tuple[int, int], seed: int) -> None:
    rng, maps = np.random.default_rng(seed), compiled_maps()
    blends = TemporalBlend(), TemporalBlend(maps=maps)
    relevance, looks = random(rng, shape), random(rng, (6, *shape))
    before: list[torch.Tensor] = []
    for frame in range(12):
        moves = rng.random() < 0.4
        if moves:
            motion = motion_of(rng, shape)
            for blend, warp in zip(blends, (Warp.of(motion), Warp.of(motion, maps)), strict=True):
                blend.follow(warp)
        if rng.random() < 0.7:
            scale = float(rng.choice([0, 0.01, 0.3, 1]))
            relevance = relevance + scale * random(rng, shape, rng.normal)
            looks = looks + scale * 0.2 * random(rng, looks.shape, rng.normal)
        outputs = [blend.step(relevance, looks, frame * FRAME_NS) for blend in blends]
        same(outputs[1], outputs[0])
        if before and not moves:
            assert (outputs[0] is before[0]) == (outputs[1] is before[1])
        before = outputs
        if rng.random() < 0.1:
            same(*(blend.replace(relevance) for blend in blends))


@given(shape=grids, seed=seeds)
def test_compiled_feedback_equals_the_reference(shape: tuple[int, int], seed: int) -> None:
    rng, maps = np.random.default_rng(seed), compiled_maps()
    priors = FeedbackPrior(), FeedbackPrior(maps)
    looks, places = random(rng, (7, *shape)), np.argwhere(np.ones(shape, bool))
    for frame in range(8):
        media_ns = frame * 10 * FRAME_NS
        if rng.random() < 0.5:
            motion = motion_of(rng, shape)
            for prior, warp in zip(priors, (Warp.of(motion), Warp.of(motion, maps)), strict=True):
                prior.follow(warp)
            looks = looks + 0.1 * random(rng, looks.shape, rng.normal)
        if rng.random() < 0.4:
            tiles = places[rng.random(len(places)) < 0.6]
            regions = np.concatenate([np.zeros((len(tiles), 1), np.int64), tiles], axis=1).astype(np.int32)
            attention = rng.random(len(tiles), np.float32)
            feedback = Feedback(FrameStamp(frame, media_ns, 0), regions, attention, attention)
            on_request = rng.random() < 0.7
            for prior in priors:
                if on_request:
                    prior.on_request(frame, looks)
                prior.update(feedback, looks, Warp.identity(shape))
        results = [prior.evaluate(media_ns, looks) for prior in priors]
        assert (results[0] is None) == (results[1] is None)
        if results[0] is not None:
            same(results[1], results[0], 2e-6)
        assert priors[1].unknown_share(looks) == pytest.approx(priors[0].unknown_share(looks), abs=1e-6)


@given(shape=grids, seed=seeds)
def test_compiled_changed_and_unseen_tiles_equal_the_reference(shape: tuple[int, int], seed: int) -> None:
    rng, maps = np.random.default_rng(seed), compiled_maps()
    meters = (ChangeMeter(keep_vanished=True), ChangeMeter(maps, keep_vanished=True))
    explorations = ExplorationTracker(), ExplorationTracker(maps)
    versions, information = TileVersions(1, np.zeros(shape, np.int64)), random(rng, shape)
    for frame in range(8):
        epoch = versions.epoch + (rng.random() < 0.2)
        changed_tiles = rng.random(shape) < 0.2
        versions = TileVersions(epoch, np.where(changed_tiles, frame, versions.frame))
        relevance = random(rng, shape) * float(rng.random() < 0.8)
        shares = [meter.measure(versions, relevance) for meter in meters]
        assert shares[1] == pytest.approx(float(shares[0]), abs=1e-6)
        information = information + 0.05 * random(rng, shape, rng.normal)
        same(*(exploration.staleness(information) for exploration in explorations))
        if rng.random() < 0.4:
            for meter, exploration in zip(meters, explorations, strict=True):
                meter.mark(versions)
                exploration.mark_shown(torch.from_numpy(np.where(changed_tiles, 0, 1).astype(np.int8)))


@given(shape=grids, seed=seeds)
def test_structure(shape: tuple[int, int], seed: int) -> None:
    rng, structures = np.random.default_rng(seed), []
    noise = random(rng, (7, *shape), rng.normal) * float(rng.choice([0, 0.01, 0.2]))
    slope = torch.linspace(0, 1, shape[1]) * random(rng, (7, 1, 1)) + torch.linspace(0, 1, shape[0])[:, None]
    looks = (0.5 + noise + slope * float(rng.choice([0, 0.1, 1]))).contiguous()
    if rng.random() < 0.5:
        looks[random(rng, (7,)) < 0.5, : shape[0] // 2, : shape[1] // 3] += float(rng.random())
    for setting in ("reference", "compiled"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SETTING, setting)
            structures.append((map_structure(looks[0]), picture_structure(looks).clamp(max=CLEAR)))
    same(structures[1], structures[0], 1e-4)


def test_the_interpreters_lock_is_kept() -> None:
    """A call is shorter than what another thread takes before it gives the lock back."""
    import ctypes

    assert isinstance(compiled_maps()._library, ctypes.PyDLL)
