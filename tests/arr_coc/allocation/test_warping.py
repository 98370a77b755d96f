"""Maps that follow what the tiles show, one frame or many, between tiles or in whole ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.allocation import warping
from arr_coc.allocation.warping import CARRY_AT_TILES, Box, Map, MotionHistory, Warp, WholeTileSteps
from arr_coc.types import TileMotion
from tests.support.motion import moved

SHAPE = (8, 12)
PLACES = np.mgrid[0:8, 0:12].astype(np.float32)


def zoomed(rate: float, angle_deg: float = 0.0) -> Warp:
    """The warp of a frame that was zoomed and turned round its middle since the one before."""
    middle = np.array([[[3.5]], [[5.5]]], np.float32)
    cos, sin = np.cos(np.deg2rad(angle_deg)), np.sin(np.deg2rad(angle_deg))
    down, right = (PLACES - middle) / rate
    origin = np.stack([cos * down - sin * right, sin * down + cos * right]).astype(np.float32) + middle
    return Warp(origin, PLACES - origin)


@given(dy=st.integers(-9, 9), dx=st.integers(-9, 9))
def test_whole_tiles_move_and_others_come_in(dy: int, dx: int) -> None:
    values = torch.arange(96.0).reshape(SHAPE)
    nearest = moved(SHAPE, dy, dx).nearest(values, -1)
    for row in range(8):
        for col in range(12):
            in_view = 0 <= row - dy < 8 and 0 <= col - dx < 12
            assert nearest[row, col] == (values[row - dy, col - dx] if in_view else -1)
    stacked = moved(SHAPE, dy, dx).sample(torch.stack([values, values]), -1)
    assert stacked.equal(torch.stack([nearest, nearest]))


def test_values_between_tiles_are_mixed_and_kinds_are_not() -> None:
    ramp = torch.from_numpy(PLACES[1])
    assert (moved(SHAPE, 0, 0.25).sample(ramp, np.nan)[:, 1:] == ramp[:, 1:] - 0.25).all()
    kinds = torch.arange(96).reshape(SHAPE)
    nearest = moved(SHAPE, 0.3, -0.4).nearest(kinds, 0)
    assert nearest.dtype == torch.int64
    assert (nearest == kinds).all()


def test_unknown_values_stay_unknown_and_do_not_spread() -> None:
    values = torch.ones(SHAPE)
    values[:, :4] = np.nan
    samples = moved(SHAPE, 0, 0.25).sample(values, np.nan)
    assert samples[:, :4].isnan().all()
    assert (samples[:, 4:] == 1).all()
    assert (moved(SHAPE, 0, 0.25).sample(values, 7)[:, :4] == 7).all()


def test_content_that_came_into_view_has_no_past() -> None:
    in_view = zoomed(0.8).in_view
    assert in_view[2:6, 2:10].all()
    assert not in_view[0].any()
    assert not in_view[:, 0].any()
    assert moved(SHAPE, 99, 0).in_view.sum() == 0


@pytest.mark.parametrize("angle_deg", [0.0, 1.0])
@pytest.mark.parametrize("rate", [0.98, 1.0, 1.03])
def test_warps_of_many_frames_are_one_warp(rate: float, angle_deg: float) -> None:
    history, step = MotionHistory(0), zoomed(rate, angle_deg)
    for frame in range(1, 31):
        history.add(frame, step)
    for frames in (0, 1, 7, 30):
        warp, expected = history.since(30 - frames, SHAPE), zoomed(rate**frames, angle_deg * frames)
        assert warp is not None
        in_view = warp.in_view & expected.in_view
        assert in_view.sum() > 12
        assert warp.origin[:, in_view] == pytest.approx(expected.origin[:, in_view], abs=0.01)


def test_slow_motion_adds_up_exactly() -> None:
    history = MotionHistory(0)
    for frame in range(1, 201):
        history.add(frame, moved(SHAPE, 0, 1 / 64))
    warp = history.since(0, SHAPE)
    assert warp is not None
    assert warp.origin[1] == pytest.approx(PLACES[1] - 200 / 64, abs=1e-3)


def test_it_knows_how_far_an_earlier_frame_is_away() -> None:
    history = MotionHistory(10)
    history.add(12, moved(SHAPE, 1, 0))
    history.add(15, moved(SHAPE, 1, -2))
    ways = {9: None, 10: (2, -2), 11: (2, -2), 12: (1, -2), 14: (1, -2), 15: (0, 0), 20: (0, 0)}
    for frame, way in ways.items():
        warp = history.since(frame, SHAPE)
        assert (warp is None) == (way is None)
        if warp is not None and way is not None:
            assert warp.origin == pytest.approx(moved(SHAPE, *way).origin, abs=1e-4)


def test_it_remembers_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warping, "REMEMBERED_BYTES", 100 * moved(SHAPE, 1, 0).origin.nbytes)
    history = MotionHistory(0)
    for frame in range(1, 200):
        history.add(frame, moved(SHAPE, 0.1, 0))
    assert history.since(98, SHAPE) is None
    warp = history.since(99, SHAPE)
    assert warp is not None
    assert warp.origin[0] == pytest.approx(PLACES[0] - 10, abs=1e-3)


def follow(warps: list[Warp], values: Map) -> tuple[Map, list[bool]]:
    """A map after whole-tile steps, and whether there was one with each frame."""
    steps, stepped = WholeTileSteps(), []
    for warp in warps:
        step = steps.step(warp)
        stepped.append(step is not None)
        values = values if step is None else step.nearest(torch.from_numpy(values), -1).numpy()
    return values, stepped


def test_small_moves_add_up_to_whole_tiles() -> None:
    values, stepped = follow([moved(SHAPE, 0, -5 / 32)] * 40, PLACES[1])
    assert values[0, 0] == 6
    assert sum(stepped) == 6
    assert not any(stepped[: int(CARRY_AT_TILES * 32 / 5)])


def test_a_shaking_hand_carries_nothing() -> None:
    assert not any(follow([moved(SHAPE, 0, 0.53 * (-1) ** frame) for frame in range(50)], PLACES[1])[1])


def test_tiles_go_their_own_way() -> None:
    """Something crosses a still picture, slowly; what it leaves behind stays."""
    origin = PLACES.copy()
    origin[1, 3, 2:11] -= 0.1
    spot = np.zeros(SHAPE, np.float32)
    spot[3, 2], spot[5, 5] = 1, 2
    values, _ = follow([Warp(origin, PLACES - origin)] * 20, spot)
    assert values[3, 4] == 1
    assert values[5, 5] == 2


@pytest.mark.parametrize("rate", [1.01, 0.99])
def test_whole_tiles_follow_a_zoom(rate: float) -> None:
    values, _ = follow([zoomed(rate)] * 60, PLACES[1])
    expected = zoomed(rate**60)
    in_view = expected.in_view & (values >= 0)
    assert in_view.sum() > 0.6 * expected.in_view.sum()
    assert np.abs(values - expected.origin[1])[in_view].max() < 1.5
    assert np.abs(values - expected.origin[1])[in_view].mean() < 0.6


def test_things_that_move_apart_do_not_mix() -> None:
    """Something of three tiles crosses a still picture, an eighth of a tile a frame: its way and the picture's stay
    theirs."""
    history = MotionHistory(0)
    for frame in range(1, 49):
        left = 1 + frame / 8
        moves = (PLACES[0] == 3) & (PLACES[1] >= left - 0.5) & (PLACES[1] < left + 2.5)
        motion = np.where(moves, np.float32(1 / 8), np.float32(0))
        history.add(frame, Warp(PLACES - np.stack([0 * motion, motion]), np.stack([0 * motion, motion])))
    warp = history.since(0, SHAPE)
    assert warp is not None
    assert warp.origin[1, 3, 7:10] == pytest.approx([1, 2, 3], abs=0.6)
    assert warp.origin[1, 3, [0, 1, 2, 3, 4, 5, 11]] == pytest.approx([0, 1, 2, 3, 4, 5, 11], abs=0.6)


@pytest.mark.parametrize("seed", range(12))
def test_tiles_outside_the_moving_box_are_read_as_in_the_whole_grid(seed: int) -> None:
    rng, shape = np.random.default_rng(seed), (9, 14)
    warps = []
    for _ in range(3):
        dy, dx = np.zeros((2, *shape), np.float32)
        top, left = rng.integers(0, 6), rng.integers(0, 9)
        part = slice(top, top + rng.integers(1, 4)), slice(left, left + rng.integers(1, 6))
        dy[part], dx[part] = rng.normal(0, 40, 2) if seed % 2 else rng.normal(0, 40, (2, *dy[part].shape))
        warps.append(Warp.of(TileMotion(dy, dx, np.ones(shape, np.float32))))
    part_then, whole_then = warps[0], without_box(warps[0])
    for warp in warps[1:]:
        assert warp.box != without_box(warp).box
        part_then, whole_then = part_then.then(warp), without_box(whole_then.then(without_box(warp)))
        np.testing.assert_allclose(part_then.origin, whole_then.origin, rtol=0, atol=1e-5)


def without_box(warp: Warp) -> Warp:
    """The same warp, whose tiles all count as moving."""
    copy = Warp(warp.origin, warp.newest)
    rows, cols = warp.origin.shape[1:]
    copy.__dict__["box"] = Box(slice(0, rows), slice(0, cols))
    return copy


def test_a_warp_that_moves_nothing_gives_the_same_values() -> None:
    values = torch.from_numpy(np.random.default_rng(0).random((2, 4, 5), np.float32))
    identity = Warp.identity((4, 5))
    assert identity.box is None
    assert identity.sample(values, np.nan).equal(values)
    assert identity.nearest(values, 0).equal(values)
