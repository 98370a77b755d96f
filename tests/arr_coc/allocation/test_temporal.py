""""""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from arr_coc.allocation.temporal import DEAD_BAND, RENEWAL, TemporalBlend
from tests.support.motion import moved

MS = 1_000_000
SAME = torch.zeros(3, 3, 4)


def flat(value: float) -> torch.Tensor:
    return torch.full((3, 4), value)


def test_the_first_frame_stands_for_itself() -> None:
    assert (TemporalBlend().step(flat(0.7), SAME, 5 * MS) == flat(0.7)).all()


def test_the_share_of_the_past_is_0_7_at_30_frames_a_second() -> None:
    blend = TemporalBlend()
    blend.step(flat(0.0), SAME, 0)
    output = blend.step(flat(1.0), SAME, int(33.37 * MS))
    assert output[0, 0] == pytest.approx(1 - math.exp(-33.37 / 93), abs=1e-6)
    assert output[0, 0] == pytest.approx(0.3, abs=0.005)


def test_blending_does_not_depend_on_the_frame_rate() -> None:
    ends = []
    for steps in (1, 2, 8):
        blend = TemporalBlend()
        blend.step(flat(0.0), SAME, 0)
        for step in range(1, steps + 1):
            output = blend.step(flat(1.0), SAME, 160 * MS * step // steps)
        ends.append(float(output[0, 0]))
    assert ends == pytest.approx([ends[0]] * 3, abs=DEAD_BAND)


def test_a_tile_that_changed_forgets() -> None:
    blend, appearance = TemporalBlend(), SAME.clone()
    blend.step(flat(0.0), SAME, 0)
    appearance[0, 0, 0] = RENEWAL
    appearance[1, 0, 1] = RENEWAL / 2
    output = blend.step(flat(1.0), appearance, 33 * MS)
    share = math.exp(-33 / 93)
    assert output[0, :3].tolist() == pytest.approx([1, 1 - share / 2, 1 - share])


def test_noise_inside_the_band_moves_nothing() -> None:
    blend, rng = TemporalBlend(), np.random.default_rng(0)
    output = blend.step(flat(0.5), SAME, 0)
    for frame in range(1, 50):
        noise = torch.from_numpy(rng.uniform(-0.02, 0.02, (3, 4)).astype(np.float32))
        assert blend.step(flat(0.5) + noise, SAME, frame * 33 * MS) is output


def test_drift_does_not_hide_in_the_band() -> None:
    blend = TemporalBlend()
    for frame in range(200):
        output = blend.step(flat(0.2 + frame * 0.002), SAME, frame * 33 * MS)
    assert abs(output - (0.2 + 199 * 0.002)).max() < DEAD_BAND + 0.01


def test_it_settles_and_time_goes_on() -> None:
    blend, final = TemporalBlend(), flat(1.0)
    blend.step(flat(0.0), SAME, 0)
    for frame in range(1, 60):
        output = blend.step(final, SAME, frame * 33 * MS)
    assert blend.step(final, SAME, 60 * 33 * MS) is output
    jump = blend.step(flat(0.0), SAME, 61 * 33 * MS)
    assert jump[0, 0] == pytest.approx(math.exp(-33 / 93), abs=DEAD_BAND)


def test_a_clock_that_stands_or_runs_back_keeps_the_past() -> None:
    blend = TemporalBlend()
    blend.step(flat(0.0), SAME, 100 * MS)
    assert not blend.step(flat(1.0), SAME, 100 * MS).any()
    assert not blend.step(flat(1.0), SAME, 50 * MS).any()


def test_it_is_carried_along_and_what_comes_in_is_new() -> None:
    blend, spot = TemporalBlend(), flat(0.0)
    blend.follow(moved(spot.shape, 1, 1))
    spot[1, 1] = 1.0
    blend.step(spot, SAME, 0)
    blend.follow(moved(spot.shape, 0, 1))
    output = blend.step(flat(0.5), SAME, 33 * MS)
    share = math.exp(-33 / 93)
    assert output[1, 2] == pytest.approx(share + 0.5 * (1 - share))
    assert output[1, 1] == pytest.approx(0.5 * (1 - share))
    assert (output[:, 0] == 0.5).all()
